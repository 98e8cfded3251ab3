"""The command lines of all commands: arguments, options, help, and what one exchange with the server does.

What takes more than that is in `cli/commands/`, and is imported by the function that calls it: `puna --help` and the
completions of a shell do without HTTP, settings and tables.
"""

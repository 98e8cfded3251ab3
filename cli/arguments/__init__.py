"""The command lines of all commands: their arguments, options and help. What they do is in `cli/commands/`.

Each function imports what it calls: `puna --help` and the completions of a shell do without HTTP, settings and tables.
"""

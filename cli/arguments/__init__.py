"""The command lines of all commands: their arguments, options and help. What they do is in `cli/commands/`."""

"""What a command says when it fails."""


class CommandFailed(Exception):
    """The command cannot do what was asked. Its text is the one line that the user reads; the exit status is 1."""

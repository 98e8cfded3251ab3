"""Errors of commands, with their exit codes."""

from cli.core.exit_codes import ExitCode


class CommandFailed(Exception):
    """The command cannot do what was asked. Its text is the one line that the user reads, `code` the exit status."""

    def __init__(self, text: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(text)
        self.code = code

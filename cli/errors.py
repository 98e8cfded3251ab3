"""Errors of commands, with their exit codes."""

from enum import IntEnum


class ExitCode(IntEnum):
    """The whole table; docs/commands.md shows it, and scripts rely on it."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    UNREACHABLE = 5
    INTERRUPTED = 130


MEANINGS = {
    ExitCode.OK: "done",
    ExitCode.FAILED: "failed; the line on standard error gives the reason",
    ExitCode.USAGE: "the command line is wrong",
    ExitCode.NOT_FOUND: "there is no such model, alias, node, device or key",
    ExitCode.REFUSED: "refused: the key is missing, wrong or lacks the right, or no key can have this right",
    ExitCode.UNREACHABLE: "the server is unreachable, is not trusted, or closed the connection",
    ExitCode.INTERRUPTED: "stopped by Ctrl-C",
}
_OF_STATUS = {401: ExitCode.REFUSED, 403: ExitCode.REFUSED, 404: ExitCode.NOT_FOUND}
# Errors in the middle of a stream have no status any more, but some dialects name them.
_OF_REASON = {
    "model_not_found": ExitCode.NOT_FOUND,
    "device_not_found": ExitCode.NOT_FOUND,
    "node_not_found": ExitCode.NOT_FOUND,
    "key_not_found": ExitCode.NOT_FOUND,
    "invalid_api_key": ExitCode.REFUSED,
    "permission_denied": ExitCode.REFUSED,
}


def code_of_status(http_status: int) -> ExitCode:
    """For an answer of the server that is no success."""
    return _OF_STATUS.get(http_status, ExitCode.FAILED)


def code_of_reason(reason: str) -> ExitCode:
    """For an error object's code."""
    return _OF_REASON.get(reason, ExitCode.FAILED)


class CommandFailed(Exception):
    """The command cannot do what was asked. Its text is the one line that the user reads, `code` the exit status."""

    def __init__(self, text: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(text)
        self.code = code

"""Domain errors in the words of each dialect."""

import math
from dataclasses import dataclass

import orjson

from common.errors import ErrorRow, InternalError, PermissionDenied, PromptTooLong, PunaError, Retry, row_of
from gateway.core.dispatch.admission import BUSY_TEXT
from gateway.core.prepare.overflow import COUNTS
from gateway.core.request.answers import Dialect

# Texts that Ollama's clients compare, whatever the error itself says. A refusal may say more behind its text.
OLLAMA_TEXTS = {
    "context_length_exceeded": "the input length exceeds the context length",
    "internal_error": "internal error",
    "invalid_api_key": "unauthorized",
    "permission_denied": "forbidden",
    "queue_full": BUSY_TEXT,
    "request_canceled": "request canceled",
    "request_timeout": "request timed out",
    "runner_lost": "model runner has unexpectedly stopped",
}
# Where an error does not say when to come again.
_RETRY_AFTER_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorAnswer:
    """A whole error response."""

    status: int
    headers: dict[str, str]
    body: bytes


def error_body(error: PunaError, dialect: Dialect, request_id: str) -> bytes:
    """Build the error object of a dialect, for a response or inside a stream."""
    # Of an internal error clients get the id of its line in the log, and no details.
    is_bug = isinstance(error, InternalError)
    if dialect is Dialect.OLLAMA:
        text = OLLAMA_TEXTS.get(error.reason, error.message)
        is_explained = isinstance(error, PermissionDenied) and error.message.startswith(text)
        return orjson.dumps({"error": error.message if is_explained else text})
    text = f"internal error ({request_id})" if is_bug else error.message
    row = row_of(error)
    if dialect is Dialect.ANTHROPIC:
        if isinstance(error, PromptTooLong) and (counts := COUNTS.search(text)):
            text = f"prompt is too long: {counts[0]}"
        body = {"type": row.anthropic_type, "message": text}
        return orjson.dumps({"type": "error", "error": body, "request_id": request_id})
    return orjson.dumps(
        {"error": {"message": text, "type": row.openai_type, "param": error.param, "code": row.openai_code}}
    )


def row_status(row: ErrorRow, dialect: Dialect) -> int:
    """Return the HTTP status of an error in a dialect."""
    match dialect:
        case Dialect.OLLAMA:
            return row.ollama_status
        case Dialect.ANTHROPIC:
            return row.anthropic_status
        case _:
            return row.openai_status


def error_answer(error: PunaError, dialect: Dialect, request_id: str) -> ErrorAnswer:
    """Build the response of a request that failed before its status line was sent."""
    row = row_of(error)
    headers = {"content-type": "application/json"}
    if row.retry is Retry.NEVER:
        headers["x-should-retry"] = "false"
    elif row.retry is Retry.LATER:
        retry_after_s = error.retry_after_s if error.retry_after_s is not None else _RETRY_AFTER_S
        headers["retry-after"] = str(math.ceil(retry_after_s))
        headers["retry-after-ms"] = str(math.ceil(retry_after_s * 1000))
    if row.openai_status == 401:
        headers["www-authenticate"] = "Bearer"
    return ErrorAnswer(status=row_status(row, dialect), headers=headers, body=error_body(error, dialect, request_id))

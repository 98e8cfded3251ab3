"""The domain errors of Puna, and the one table that gives each its status in every dialect.

Raise the error that names what went wrong.
The edges translate it: `common.grpc.errors` and `gateway.http.endpoint.errors`.
"""

from dataclasses import dataclass
from enum import StrEnum

from grpc import StatusCode

from common.startup_error import StartupError as StartupError  # noqa: PLC0414  # where everybody looks for it


class Retry(StrEnum):
    """What a client should do with the same request."""

    UNSAID = "unsaid"  # the status alone tells
    NEVER = "never"  # it cannot succeed: send `x-should-retry: false`
    LATER = "later"  # send Retry-After


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRow:
    """Statuses of one error in each dialect. `anthropic_type` and `openai_code` may repeat over rows."""

    grpc: StatusCode
    openai_status: int
    openai_type: str
    openai_code: str
    anthropic_status: int
    anthropic_type: str
    ollama_status: int
    retry: Retry = Retry.UNSAID


class PunaError(Exception):
    """Base of all errors that a caller may see. `reason` names the row of ERROR_TABLE."""

    reason = "internal_error"

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        """`param` is the field of the request at fault; `retry_after_s` is set only where a retry makes sense."""
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


class InvalidRequest(PunaError):
    """Malformed, of the wrong type, out of range, or incomplete."""

    reason = "invalid_value"


class PromptTooLong(PunaError):
    """The prompt has more tokens than the context."""

    reason = "context_length_exceeded"


class UnsupportedCapability(PunaError):
    """The model cannot do what was asked."""

    reason = "unsupported_capability"


class EmbeddingsUnsupported(PunaError):
    """The model gives no vectors. Ollama says 501, whose SDKs take it; those of OpenAI would try again."""

    reason = "embeddings_unsupported"


class TemplateFailed(PunaError):
    """The chat template raised, or ran over its deadline."""

    reason = "template_error"
    is_flaw: bool | None = False  # of the template itself, whatever the conversation; None: nobody can say


class Unauthenticated(PunaError):
    """No key, a bad key, or an expired one."""

    reason = "invalid_api_key"


class PermissionDenied(PunaError):
    """The key lacks the scope, or the Host or Origin header is refused."""

    reason = "permission_denied"


class ModelNotFound(PunaError):
    """No node has a model of this name."""

    reason = "model_not_found"


class KeyNotFound(PunaError):
    """There is no API key of this id, or not for this caller."""

    reason = "key_not_found"


class UnknownRoute(PunaError):
    """No such path."""

    reason = "unknown_url"


class MethodNotAllowed(PunaError):
    """The path exists, the method does not."""

    reason = "method_not_allowed"


class UnsupportedMediaType(PunaError):
    """The body's media type or encoding is not accepted."""

    reason = "unsupported_media_type"


class RequestTooLarge(PunaError):
    """The body is over the size limit."""

    reason = "request_too_large"


class RateLimited(PunaError):
    """The key's quota is used up."""

    reason = "rate_limit_exceeded"


class QueueFull(PunaError):
    """Capacity exists, but every place in it and in the queue is taken."""

    reason = "queue_full"


class ModelUnavailable(PunaError):
    """No replica and none can be loaded now."""

    reason = "model_unavailable"


class ModelLoading(PunaError):
    """The replica is still loading."""

    reason = "model_loading"


class ShuttingDown(PunaError):
    """This process takes nothing new."""

    reason = "shutting_down"


class InsufficientMemory(PunaError):
    """Does not fit, even when everything else is gone."""

    reason = "insufficient_memory"


class RunnerLost(PunaError):
    """The runner died and the stream could not go on elsewhere."""

    reason = "runner_lost"


class DeviceLost(PunaError):
    """A device failed under a runner, which ended; load elsewhere."""

    reason = "device_lost"


class DeviceNotFound(PunaError):
    """The node has no such device."""

    reason = "device_not_found"


class NodeNotFound(PunaError):
    """Nobody has registered under this name."""

    reason = "node_not_found"


class RequestQuarantined(PunaError):
    """The request killed two runners."""

    reason = "request_quarantined"


class RequestTimeout(PunaError):
    """The deadline passed."""

    reason = "request_timeout"


class RequestCanceled(PunaError):
    """The client left."""

    reason = "request_canceled"


class NotSupported(PunaError):
    """A part of the API that Puna does not have."""

    reason = "not_supported"


class RegistryFailed(PunaError):
    """The model registry is unreachable or answers nonsense."""

    reason = "registry_failed"


class DigestMismatch(PunaError):
    """The bytes are not those that the digest names."""

    reason = "digest_mismatch"


class DiskFull(PunaError):
    """No room for the file."""

    reason = "disk_full"


class BadModelFile(PunaError):
    """The file is missing, unreadable, truncated, or no GGUF that the engine can load."""

    reason = "bad_model_file"


class StaleFence(PunaError):
    """The commanding scheduler is no longer the leader. Its move: stop acting, acquire leadership again."""

    reason = "stale_fence"


class PlacementMismatch(PunaError):
    """Another placement, generation or incarnation runs here. The caller's move: look the route up again."""

    reason = "placement_mismatch"


class DeviceMemoryExhausted(PunaError):
    """The devices have less free memory than planned. The scheduler's move: take a new snapshot and plan again."""

    reason = "device_memory_exhausted"


class InternalError(PunaError):
    """A bug of ours."""

    reason = "internal_error"


_INVALID = "invalid_request_error"
_SERVER = "server_error"


def _bad_request(code: str, retry: Retry = Retry.UNSAID) -> ErrorRow:
    return ErrorRow(
        grpc=StatusCode.INVALID_ARGUMENT,
        openai_status=400,
        openai_type=_INVALID,
        openai_code=code,
        anthropic_status=400,
        anthropic_type=_INVALID,
        ollama_status=400,
        retry=retry,
    )


def _row(  # one column each; the table below is read as a table
    grpc: StatusCode,
    openai: tuple[int, str, str],
    anthropic: tuple[int, str],
    ollama: int,
    retry: Retry = Retry.UNSAID,
) -> ErrorRow:
    status, kind, code = openai
    return ErrorRow(
        grpc=grpc,
        openai_status=status,
        openai_type=kind,
        openai_code=code,
        anthropic_status=anthropic[0],
        anthropic_type=anthropic[1],
        ollama_status=ollama,
        retry=retry,
    )


_S = StatusCode
ERROR_TABLE: dict[str, ErrorRow] = {
    "invalid_value": _bad_request("invalid_value"),
    "context_length_exceeded": _bad_request("context_length_exceeded"),
    "unsupported_capability": _bad_request("unsupported_capability"),
    "embeddings_unsupported": _row(
        _S.UNIMPLEMENTED, (400, _INVALID, "unsupported_capability"), (400, _INVALID), 501, Retry.NEVER
    ),
    "template_error": _bad_request("template_error", Retry.NEVER),
    "invalid_api_key": _row(_S.UNAUTHENTICATED, (401, _INVALID, "invalid_api_key"), (401, "authentication_error"), 401),
    "permission_denied": _row(
        _S.PERMISSION_DENIED, (403, "permission_error", "permission_denied"), (403, "permission_error"), 403
    ),
    "model_not_found": _row(_S.NOT_FOUND, (404, _INVALID, "model_not_found"), (404, "not_found_error"), 404),
    "key_not_found": _row(_S.NOT_FOUND, (404, _INVALID, "key_not_found"), (404, "not_found_error"), 404),
    "unknown_url": _row(_S.UNIMPLEMENTED, (404, _INVALID, "unknown_url"), (404, "not_found_error"), 404),
    "method_not_allowed": _row(_S.UNIMPLEMENTED, (405, _INVALID, "method_not_allowed"), (405, _INVALID), 405),
    "unsupported_media_type": _row(_S.UNIMPLEMENTED, (415, _INVALID, "unsupported_media_type"), (415, _INVALID), 415),
    "request_too_large": _row(
        _S.RESOURCE_EXHAUSTED, (413, _INVALID, "request_too_large"), (413, "request_too_large"), 413
    ),
    "rate_limit_exceeded": _row(
        _S.RESOURCE_EXHAUSTED,
        (429, "rate_limit_error", "rate_limit_exceeded"),
        (429, "rate_limit_error"),
        429,
        Retry.LATER,
    ),
    "queue_full": _row(
        _S.RESOURCE_EXHAUSTED, (429, "rate_limit_error", "queue_full"), (529, "overloaded_error"), 503, Retry.LATER
    ),
    "model_unavailable": _row(
        _S.UNAVAILABLE, (503, _SERVER, "model_unavailable"), (529, "overloaded_error"), 503, Retry.LATER
    ),
    "model_loading": _row(_S.UNAVAILABLE, (503, _SERVER, "model_loading"), (529, "overloaded_error"), 503, Retry.LATER),
    "shutting_down": _row(_S.UNAVAILABLE, (503, _SERVER, "shutting_down"), (529, "overloaded_error"), 503, Retry.LATER),
    "insufficient_memory": _row(
        _S.FAILED_PRECONDITION, (503, _SERVER, "insufficient_memory"), (503, "api_error"), 500, Retry.NEVER
    ),
    "runner_lost": _row(_S.UNAVAILABLE, (503, _SERVER, "runner_lost"), (500, "api_error"), 500, Retry.LATER),
    "device_lost": _row(_S.UNAVAILABLE, (503, _SERVER, "device_lost"), (500, "api_error"), 500, Retry.LATER),
    "device_not_found": _row(_S.NOT_FOUND, (404, _INVALID, "device_not_found"), (404, "not_found_error"), 404),
    "node_not_found": _row(_S.NOT_FOUND, (404, _INVALID, "node_not_found"), (404, "not_found_error"), 404),
    "request_quarantined": _row(
        _S.FAILED_PRECONDITION, (500, _SERVER, "request_quarantined"), (500, "api_error"), 500, Retry.NEVER
    ),
    "request_timeout": _row(
        _S.DEADLINE_EXCEEDED, (504, "timeout_error", "request_timeout"), (504, "timeout_error"), 504
    ),
    "request_canceled": _row(_S.CANCELLED, (499, _INVALID, "request_canceled"), (499, "api_error"), 499),
    "not_supported": _row(_S.UNIMPLEMENTED, (501, _INVALID, "not_supported"), (501, "api_error"), 501, Retry.NEVER),
    "registry_failed": _row(_S.UNAVAILABLE, (502, _SERVER, "registry_failed"), (502, "api_error"), 502),
    "digest_mismatch": _row(_S.DATA_LOSS, (502, _SERVER, "digest_mismatch"), (502, "api_error"), 502),
    "disk_full": _row(_S.RESOURCE_EXHAUSTED, (507, _SERVER, "disk_full"), (507, "api_error"), 507),
    "bad_model_file": _row(_S.DATA_LOSS, (500, _SERVER, "bad_model_file"), (500, "api_error"), 500, Retry.NEVER),
    "stale_fence": _row(_S.FAILED_PRECONDITION, (503, _SERVER, "model_unavailable"), (529, "overloaded_error"), 503),
    "placement_mismatch": _row(
        _S.FAILED_PRECONDITION, (503, _SERVER, "model_unavailable"), (529, "overloaded_error"), 503
    ),
    "device_memory_exhausted": _row(
        _S.RESOURCE_EXHAUSTED, (503, _SERVER, "insufficient_memory"), (503, "api_error"), 500
    ),
    "internal_error": _row(_S.INTERNAL, (500, _SERVER, "internal_error"), (500, "api_error"), 500),
}


def error_types() -> dict[str, type[PunaError]]:
    """Every domain error by its reason."""
    return {kind.reason: kind for kind in PunaError.__subclasses__()}


def row_of(error: PunaError) -> ErrorRow:
    """The table's row for an error."""
    return ERROR_TABLE[error.reason]

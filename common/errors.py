"""The domain errors of Puna, and the one table that gives each its status in every dialect.

Raise the error that names what went wrong.
The edges translate it: `common.grpc.errors` and `gateway.http.endpoint.errors`.
"""

from dataclasses import dataclass
from enum import StrEnum

from grpc import StatusCode

from common.startup_error import StartupError as StartupError  # noqa: PLC0414  # beside all other errors


class Retry(StrEnum):
    """Advice to a client about repeating the same request."""

    UNSAID = "unsaid"  # the status alone decides
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

    def __init_subclass__(cls, *, reason: str = "") -> None:
        """Give a class the reason of its definition; one without keeps that of its base."""
        cls.reason = reason or cls.reason

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        """`param` is the field of the request at fault; `retry_after_s` is set only where a retry makes sense."""
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


class InvalidRequest(PunaError, reason="invalid_value"):
    """Malformed, of the wrong type, out of range, or incomplete."""


class PromptTooLong(PunaError, reason="context_length_exceeded"):
    """The prompt has more tokens than the context."""


class UnsupportedCapability(PunaError, reason="unsupported_capability"):
    """The model cannot do what was asked."""


class EmbeddingsUnsupported(PunaError, reason="embeddings_unsupported"):
    """The model gives no vectors. Ollama says 501, whose SDKs take it; those of OpenAI would try again."""


class TemplateFailed(PunaError, reason="template_error"):
    """The chat template raised, or ran over its deadline."""

    is_flaw: bool | None = False  # of the template itself, whatever the conversation; None: unknown


class Unauthenticated(PunaError, reason="invalid_api_key"):
    """No key, a bad key, or an expired one."""


class PermissionDenied(PunaError, reason="permission_denied"):
    """The key lacks the scope, or the Host or Origin header is refused."""


class ModelNotFound(PunaError, reason="model_not_found"):
    """No node has a model of this name."""


class KeyNotFound(PunaError, reason="key_not_found"):
    """There is no API key of this id, or not for this caller."""


class UnknownRoute(PunaError, reason="unknown_url"):
    """No such path."""


class MethodNotAllowed(PunaError, reason="method_not_allowed"):
    """The path exists, the method does not."""


class UnsupportedMediaType(PunaError, reason="unsupported_media_type"):
    """The body's media type or encoding is not accepted."""


class RequestTooLarge(PunaError, reason="request_too_large"):
    """The body is over the size limit."""


class RateLimited(PunaError, reason="rate_limit_exceeded"):
    """The key's quota is used up."""


class QueueFull(PunaError, reason="queue_full"):
    """Capacity exists, but every place in it and in the queue is taken."""


class ModelUnavailable(PunaError, reason="model_unavailable"):
    """No replica and none can be loaded now."""


class ModelLoading(PunaError, reason="model_loading"):
    """The replica is still loading."""


class ShuttingDown(PunaError, reason="shutting_down"):
    """This process takes nothing new."""


class InsufficientMemory(PunaError, reason="insufficient_memory"):
    """Does not fit, even when everything else is gone."""


class RunnerLost(PunaError, reason="runner_lost"):
    """The runner died and the stream could not go on elsewhere."""


class DeviceLost(PunaError, reason="device_lost"):
    """A device failed under a runner, which ended; load elsewhere."""


class DeviceNotFound(PunaError, reason="device_not_found"):
    """The node has no such device."""


class NodeNotFound(PunaError, reason="node_not_found"):
    """No node has registered under this name."""


class RequestQuarantined(PunaError, reason="request_quarantined"):
    """The request killed two runners."""


class RequestTimeout(PunaError, reason="request_timeout"):
    """The deadline passed."""


class RequestCanceled(PunaError, reason="request_canceled"):
    """The client left."""


class NotSupported(PunaError, reason="not_supported"):
    """A part of the API that Puna does not have."""


class RegistryFailed(PunaError, reason="registry_failed"):
    """The model registry is unreachable or answers nonsense."""


class DigestMismatch(PunaError, reason="digest_mismatch"):
    """The bytes are not those that the digest names."""


class DiskFull(PunaError, reason="disk_full"):
    """No room for the file."""


class BadModelFile(PunaError, reason="bad_model_file"):
    """The file is missing, unreadable, truncated, or no GGUF that the engine can load."""


class StaleFence(PunaError, reason="stale_fence"):
    """The commanding scheduler is no longer the leader. Its move: stop acting, acquire leadership again."""


class PlacementMismatch(PunaError, reason="placement_mismatch"):
    """Another placement, generation or incarnation runs here. The caller's move: look the route up again."""


class DeviceMemoryExhausted(PunaError, reason="device_memory_exhausted"):
    """The devices have less free memory than planned. The scheduler's move: take a new snapshot and plan again."""


class InternalError(PunaError, reason="internal_error"):
    """A bug of ours."""


_INVALID = "invalid_request_error"
_SERVER = "server_error"


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


def _bad_request(code: str, retry: Retry = Retry.UNSAID) -> ErrorRow:
    return _row(StatusCode.INVALID_ARGUMENT, (400, _INVALID, code), (400, _INVALID), 400, retry)


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
    """Return the table's row for an error."""
    return ERROR_TABLE[error.reason]

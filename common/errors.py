"""The domain errors of Puna, and the one table that gives each its status in every dialect.

Raise the error that names what went wrong.
The edges translate it: `common.grpc.errors` and `gateway.http.endpoint.errors`.
"""

import errno
from dataclasses import dataclass
from enum import StrEnum

from grpc import StatusCode

from common.startup_error import StartupError as StartupError  # noqa: PLC0414  # beside all other errors

# Descriptors and threads come back as others end.
EXHAUSTED_RETRY_S = 5.0


class Retry(StrEnum):
    """Advice to a client about repeating the same request."""

    UNSAID = "unsaid"  # the status alone decides
    NEVER = "never"  # it cannot succeed: send `x-should-retry: false`
    LATER = "later"  # send Retry-After


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """Statuses of one error in each dialect. `anthropic_type` and `openai_code` may repeat over rows."""

    grpc: StatusCode
    openai_status: int
    openai_type: str
    anthropic_status: int
    anthropic_type: str
    ollama_status: int
    retry: Retry
    openai_code: str


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


class HeadersTooLarge(PunaError, reason="headers_too_large"):
    """The head of the request is over its limits."""


class RateLimited(PunaError, reason="rate_limit_exceeded"):
    """The key's quota is used up."""


class QueueFull(PunaError, reason="queue_full"):
    """Capacity exists, but every place in it and in the queue is taken."""


class ModelUnavailable(PunaError, reason="model_unavailable"):
    """No replica and none can be loaded now."""


class NotLeading(PunaError, reason="not_leading"):
    """This scheduler does not lead. The caller's move: ask the others, and again until one leads."""


class StoreUnreachable(PunaError, reason="store_unreachable"):
    """No scheduler can lead while the state store is away."""


class ModelLoading(PunaError, reason="model_loading"):
    """The replica is still loading."""


class ShuttingDown(PunaError, reason="shutting_down"):
    """This process takes nothing new."""


class AuditUnavailable(PunaError, reason="audit_unavailable"):
    """The audit log cannot be written, so an administrative act was not carried out."""


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

    def __init__(
        self, message: str, *, high_water: int = 0, param: str | None = None, retry_after_s: float | None = None
    ) -> None:
        """`high_water` is the highest fence that a host has accepted; 0: not known."""
        super().__init__(message, param=param, retry_after_s=retry_after_s)
        self.high_water = high_water


class PlacementMismatch(PunaError, reason="placement_mismatch"):
    """Another placement, generation or incarnation runs here. The caller's move: look the route up again."""


class DeviceMemoryExhausted(PunaError, reason="device_memory_exhausted"):
    """The devices have less free memory than planned. The scheduler's move: take a new snapshot and plan again."""


class InternalError(PunaError, reason="internal_error"):
    """A bug of ours."""


def exhaustion(error: Exception) -> PunaError | None:
    """Return the refusal for an error of a system without a descriptor or thread left; None: it is another error."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return ModelUnavailable("the process has too many open files; raise its limit", retry_after_s=EXHAUSTED_RETRY_S)
    if isinstance(error, RuntimeError) and str(error) == "can't start new thread":
        return ModelUnavailable(
            "the process can start no more threads; raise its limit", retry_after_s=EXHAUSTED_RETRY_S
        )
    return None


# OpenAI's code is the reason, but for these.
_OPENAI_CODES = {
    "embeddings_unsupported": "unsupported_capability",
    "not_leading": "model_unavailable",
    "store_unreachable": "model_unavailable",
    "stale_fence": "model_unavailable",
    "placement_mismatch": "model_unavailable",
    "device_memory_exhausted": "insufficient_memory",
}


def _row(
    reason: str,
    grpc: StatusCode,
    openai: tuple[int, str],
    anthropic: tuple[int, str],
    ollama: int,
    retry: Retry = Retry.UNSAID,
) -> tuple[str, ErrorRow]:
    """Return an entry of the table below, whose pairs are of a status and a type."""
    return reason, ErrorRow(grpc, *openai, *anthropic, ollama, retry, _OPENAI_CODES.get(reason, reason))


_S = StatusCode
_INVALID, _SERVER, _API = "invalid_request_error", "server_error", "api_error"
_BAD_REQUEST, _MISSING, _NO_ROUTE = (400, _INVALID), (404, _INVALID), (404, "not_found_error")
_DENIED, _LIMITED, _TIMEOUT = (403, "permission_error"), (429, "rate_limit_error"), (504, "timeout_error")
_BROKEN, _AWAY, _OVERLOADED = (500, _SERVER), (503, _SERVER), (529, "overloaded_error")
# Reason, gRPC, OpenAI, Anthropic, Ollama, advice.
ERROR_TABLE: dict[str, ErrorRow] = dict(
    (
        _row("invalid_value", _S.INVALID_ARGUMENT, _BAD_REQUEST, _BAD_REQUEST, 400),
        _row("context_length_exceeded", _S.INVALID_ARGUMENT, _BAD_REQUEST, _BAD_REQUEST, 400),
        _row("unsupported_capability", _S.INVALID_ARGUMENT, _BAD_REQUEST, _BAD_REQUEST, 400),
        _row("embeddings_unsupported", _S.UNIMPLEMENTED, _BAD_REQUEST, _BAD_REQUEST, 501, Retry.NEVER),
        _row("template_error", _S.INVALID_ARGUMENT, _BAD_REQUEST, _BAD_REQUEST, 400, Retry.NEVER),
        _row("invalid_api_key", _S.UNAUTHENTICATED, (401, _INVALID), (401, "authentication_error"), 401),
        _row("permission_denied", _S.PERMISSION_DENIED, _DENIED, _DENIED, 403),
        _row("model_not_found", _S.NOT_FOUND, _MISSING, _NO_ROUTE, 404),
        _row("key_not_found", _S.NOT_FOUND, _MISSING, _NO_ROUTE, 404),
        _row("unknown_url", _S.UNIMPLEMENTED, _MISSING, _NO_ROUTE, 404),
        _row("method_not_allowed", _S.UNIMPLEMENTED, (405, _INVALID), (405, _INVALID), 405),
        _row("unsupported_media_type", _S.UNIMPLEMENTED, (415, _INVALID), (415, _INVALID), 415),
        _row("request_too_large", _S.RESOURCE_EXHAUSTED, (413, _INVALID), (413, "request_too_large"), 413),
        _row("headers_too_large", _S.RESOURCE_EXHAUSTED, (431, _INVALID), (431, _INVALID), 431),
        _row("rate_limit_exceeded", _S.RESOURCE_EXHAUSTED, _LIMITED, _LIMITED, 429, Retry.LATER),
        _row("queue_full", _S.RESOURCE_EXHAUSTED, _LIMITED, _OVERLOADED, 503, Retry.LATER),
        _row("model_unavailable", _S.UNAVAILABLE, _AWAY, _OVERLOADED, 503, Retry.LATER),
        _row("not_leading", _S.UNAVAILABLE, _AWAY, _OVERLOADED, 503, Retry.LATER),
        _row("store_unreachable", _S.UNAVAILABLE, _AWAY, _OVERLOADED, 503, Retry.LATER),
        _row("model_loading", _S.UNAVAILABLE, _AWAY, _OVERLOADED, 503, Retry.LATER),
        _row("shutting_down", _S.UNAVAILABLE, _AWAY, _OVERLOADED, 503, Retry.LATER),
        _row("audit_unavailable", _S.UNAVAILABLE, _AWAY, _OVERLOADED, 503, Retry.LATER),
        _row("insufficient_memory", _S.FAILED_PRECONDITION, _AWAY, (503, _API), 500, Retry.NEVER),
        _row("runner_lost", _S.UNAVAILABLE, _AWAY, (500, _API), 500, Retry.LATER),
        _row("device_lost", _S.UNAVAILABLE, _AWAY, (500, _API), 500, Retry.LATER),
        _row("device_not_found", _S.NOT_FOUND, _MISSING, _NO_ROUTE, 404),
        _row("node_not_found", _S.NOT_FOUND, _MISSING, _NO_ROUTE, 404),
        _row("request_quarantined", _S.FAILED_PRECONDITION, _BROKEN, (500, _API), 500, Retry.NEVER),
        _row("request_timeout", _S.DEADLINE_EXCEEDED, _TIMEOUT, _TIMEOUT, 504),
        _row("request_canceled", _S.CANCELLED, (499, _INVALID), (499, _API), 499),
        _row("not_supported", _S.UNIMPLEMENTED, (501, _INVALID), (501, _API), 501, Retry.NEVER),
        _row("registry_failed", _S.UNAVAILABLE, (502, _SERVER), (502, _API), 502),
        _row("digest_mismatch", _S.DATA_LOSS, (502, _SERVER), (502, _API), 502),
        _row("disk_full", _S.RESOURCE_EXHAUSTED, (507, _SERVER), (507, _API), 507),
        _row("bad_model_file", _S.DATA_LOSS, _BROKEN, (500, _API), 500, Retry.NEVER),
        _row("stale_fence", _S.FAILED_PRECONDITION, _AWAY, _OVERLOADED, 503),
        _row("placement_mismatch", _S.FAILED_PRECONDITION, _AWAY, _OVERLOADED, 503),
        _row("device_memory_exhausted", _S.RESOURCE_EXHAUSTED, _AWAY, (503, _API), 500),
        _row("internal_error", _S.INTERNAL, _BROKEN, (500, _API), 500),
    )
)


def error_types() -> dict[str, type[PunaError]]:
    """Every domain error by its reason."""
    return {kind.reason: kind for kind in PunaError.__subclasses__()}


def row_of(error: PunaError) -> ErrorRow:
    """Return the table's row for an error."""
    return ERROR_TABLE[error.reason]

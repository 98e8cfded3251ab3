"""Errors that a route can end in, by its kind; the table of errors gives each its status in its dialect."""

from collections.abc import Iterable

from common.errors import (
    ERROR_TABLE,
    BadModelFile,
    DeviceLost,
    DeviceNotFound,
    DigestMismatch,
    DiskFull,
    EmbeddingsUnsupported,
    InsufficientMemory,
    InternalError,
    InvalidRequest,
    KeyNotFound,
    ModelLoading,
    ModelNotFound,
    ModelUnavailable,
    NodeNotFound,
    NotSupported,
    PermissionDenied,
    PromptTooLong,
    PunaError,
    QueueFull,
    RateLimited,
    RegistryFailed,
    RequestQuarantined,
    RequestTimeout,
    RequestTooLarge,
    RunnerLost,
    ShuttingDown,
    TemplateFailed,
    Unauthenticated,
    UnsupportedCapability,
    UnsupportedMediaType,
)
from gateway.core.request.answers import Dialect
from gateway.http.endpoint.errors import row_status

Errors = frozenset[type[PunaError]]

# Of the head of any request: too large, or ambiguous; a foreign Host or Origin. And bugs of ours.
OF_EVERY_ROUTE: Errors = frozenset({InvalidRequest, PermissionDenied, InternalError})
OF_KEYS: Errors = frozenset({Unauthenticated, PermissionDenied, RateLimited})
OF_BODIES: Errors = frozenset({UnsupportedMediaType, RequestTooLarge, RequestTimeout, QueueFull})
# Of whatever the scheduler or a node is asked for.
OF_THE_CLUSTER: Errors = frozenset({ModelUnavailable, RequestTimeout, ShuttingDown})
OF_MODEL_NAMES: Errors = frozenset({ModelNotFound, BadModelFile})
OF_LOADS: Errors = OF_THE_CLUSTER | OF_MODEL_NAMES | {InsufficientMemory, ModelLoading, QueueFull, DeviceLost}
OF_ANSWERS: Errors = OF_LOADS | {
    PromptTooLong,
    UnsupportedCapability,
    EmbeddingsUnsupported,
    TemplateFailed,
    RunnerLost,
    RequestQuarantined,
}
OF_STORES: Errors = (
    OF_THE_CLUSTER
    | OF_MODEL_NAMES
    | {NotSupported, RegistryFailed, DigestMismatch, DiskFull, TemplateFailed, RequestTooLarge, QueueFull}
)
OF_MADE_KEYS: Errors = frozenset({NotSupported, KeyNotFound, ModelUnavailable})
OF_NODES: Errors = OF_THE_CLUSTER | {NodeNotFound, DeviceNotFound, ModelNotFound}
NEVER_THERE: Errors = frozenset({NotSupported})


def reasons_by_status(errors: Iterable[type[PunaError]], dialect: Dialect) -> dict[int, list[str]]:
    """Group the reasons of errors by status, lowest status first."""
    found: dict[int, set[str]] = {}
    for error in errors:
        found.setdefault(row_status(ERROR_TABLE[error.reason], dialect), set()).add(error.reason)
    return {status: sorted(found[status]) for status in sorted(found)}

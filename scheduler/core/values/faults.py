"""Failures as values, so that decisions about them stay pure. `reason` is a row of the error table."""

from dataclasses import dataclass

from common import errors
from scheduler.core.values.memory import MemoryReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What went wrong, as the caller will read it."""

    reason: str
    message: str
    retry_after_s: float | None = None
    attempted: MemoryReport | None = None  # sizes that could not be allocated


# Another layout, another device or a later moment may do.
MEMORY_REASONS = frozenset({errors.DeviceMemoryExhausted.reason, errors.InsufficientMemory.reason})
# The host did not answer; it may have acted all the same.
TRANSPORT_REASONS = frozenset(
    {
        errors.ModelUnavailable.reason,
        errors.RequestTimeout.reason,
        errors.RequestCanceled.reason,
        errors.ShuttingDown.reason,
    }
)
STALE_FENCE = errors.StaleFence.reason
PLACEMENT_MISMATCH = errors.PlacementMismatch.reason
RUNNER_LOST = errors.RunnerLost.reason
DISK_FULL = errors.DiskFull.reason

RETRY_SOON_S = 1.0


def unavailable(message: str, *, retry_after_s: float = RETRY_SOON_S) -> Fault:
    """Nothing to be had now; try again."""
    return Fault(reason=errors.ModelUnavailable.reason, message=message, retry_after_s=retry_after_s)


def canceled(message: str) -> Fault:
    """Nobody wants it any more."""
    return Fault(reason=errors.RequestCanceled.reason, message=message)


def device_not_found(label: str) -> Fault:
    """No node has it."""
    return Fault(reason=errors.DeviceNotFound.reason, message=f"device '{label}' not found")


def node_not_found(node_id: str) -> Fault:
    """Nobody has registered under this name."""
    return Fault(reason=errors.NodeNotFound.reason, message=f"no node is called {node_id!r}")


def invalid_value(message: str) -> Fault:
    """The caller's mistake; the text names what is wrong."""
    return Fault(reason=errors.InvalidRequest.reason, message=message)


def model_not_found(name: str) -> Fault:
    """No node has it."""
    return Fault(reason=errors.ModelNotFound.reason, message=f"model '{name}' not found")


def bad_model_file(name: str, why: str) -> Fault:
    """The file is there and of no use."""
    return Fault(reason=errors.BadModelFile.reason, message=f"model '{name}' cannot be loaded: {why}")


def insufficient_memory(message: str) -> Fault:
    """Too large for every device, even when everything else is gone."""
    return Fault(reason=errors.InsufficientMemory.reason, message=message)


def queue_full(load_s: float | None) -> Fault:
    """As many wait as may; `load_s`: how long loads like those that they wait for took. None: nobody knows."""
    return Fault(
        reason=errors.QueueFull.reason,
        message="server busy, please try again.  maximum pending requests exceeded",
        retry_after_s=RETRY_SOON_S if load_s is None else max(RETRY_SOON_S, load_s),
    )

"""Failures and crashes as values, so that decisions about them stay pure. `reason` is a row of the error table."""

from dataclasses import dataclass

from common import errors
from scheduler.core.values.memory import MemoryReport


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashRow:
    """Replicas that ended unexpectedly, none of which had served for long."""

    model_name: str
    node_id: str
    crashes: int
    first_s: float
    last_s: float
    retry_at_s: float  # the model is not loaded here before
    excluded_until_s: float | None  # other nodes are preferred until then; None: they are not
    error: str  # of the last crash


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Fault of an attempt, as the caller will read it."""

    reason: str
    message: str
    retry_after_s: float | None = None
    attempted: MemoryReport | None = None  # sizes that could not be allocated
    lender_id: str = ""  # the node that does not lend what is needed
    high_water: int = 0  # of a stale fence: the highest that the host has accepted; 0: not known


GONE = Fault(reason=errors.RunnerLost.reason, message="model runner has unexpectedly stopped")

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


def unavailable(message: str) -> Fault:
    """Return a fault of the moment; try again."""
    return Fault(reason=errors.ModelUnavailable.reason, message=message, retry_after_s=RETRY_SOON_S)


def not_leading(why: str) -> Fault:
    """Return the fault of a scheduler that does not lead, while another one does or one will within seconds."""
    return Fault(reason=errors.NotLeading.reason, message=why, retry_after_s=RETRY_SOON_S)


def store_unreachable(why: str) -> Fault:
    """Return the fault of a scheduler that cannot lead, because the store is away."""
    return Fault(reason=errors.StoreUnreachable.reason, message=why, retry_after_s=RETRY_SOON_S)


def canceled(message: str) -> Fault:
    """Return the fault of a load without callers."""
    return Fault(reason=errors.RequestCanceled.reason, message=message)


def device_not_found(label: str, *, model_name: str = "") -> Fault:
    """Return the fault of an unknown device. `model_name`: a model of this name, which has a command of its own."""
    hint = f"; it is a model: `puna load {model_name}` forgets its crashes" if model_name else ""
    return Fault(reason=errors.DeviceNotFound.reason, message=f"device '{label}' not found{hint}")


def node_not_found(node_id: str) -> Fault:
    """Return the fault of an unknown node."""
    return Fault(reason=errors.NodeNotFound.reason, message=f"no node is called {node_id!r}")


def invalid_value(message: str) -> Fault:
    """Return the fault of a caller's mistake; the text names it."""
    return Fault(reason=errors.InvalidRequest.reason, message=message)


def model_not_found(name: str) -> Fault:
    """Return the fault of a model that no node has."""
    return Fault(reason=errors.ModelNotFound.reason, message=f"model '{name}' not found")


def bad_model_file(name: str, why: str) -> Fault:
    """Return the fault of a file that is there and unusable."""
    return Fault(reason=errors.BadModelFile.reason, message=f"model '{name}' cannot be loaded: {why}")


def insufficient_memory(message: str) -> Fault:
    """Return the fault of a model that is too large for every device, even if everything else is evicted."""
    return Fault(reason=errors.InsufficientMemory.reason, message=message)


def queue_full(load_s: float | None) -> Fault:
    """Return the fault of a full queue; `load_s`: the time of loads like those ahead. None: unknown."""
    return Fault(
        reason=errors.QueueFull.reason,
        message="server busy, please try again.  maximum pending requests exceeded",
        retry_after_s=RETRY_SOON_S if load_s is None else max(RETRY_SOON_S, load_s),
    )

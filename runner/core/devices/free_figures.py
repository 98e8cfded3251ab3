"""Free memory of a device, from the best source there is. Pure.

Host RAM is one pool. A server that lends a part of this machine's RAM has a pool of its own within it: its figures are
limited by both.
"""

from dataclasses import dataclass

from runner.core.devices.device_settings import RpcPool
from runner.core.devices.gpu_memory import GpuMemory
from runner.core.devices.memory import HostMemory

# A server that reports this much of the machine's RAM has no limit of its own.
_WHOLE_RAM_SHARE = 0.9
PROMISED = "promised"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Bytes that a new allocation could get. `source` names the origin of the figure."""

    total_bytes: int
    free_bytes: int
    source: str
    is_predicted: bool = False  # else it was measured; staleness is a matter of age, and not decided here


def ram_figure(ram: HostMemory) -> Figure:
    """Return the CPU, and everything that has no memory beside RAM."""
    return Figure(total_bytes=ram.total_bytes, free_bytes=ram.free_bytes, source=ram.source)


def card_figure(card: GpuMemory, ram: HostMemory, *, integrated: bool) -> Figure:
    """Card as its driver reports it. An integrated one has its own part and what it may take of RAM."""
    if card.unified:
        return ram_figure(ram)
    total_bytes, free_bytes = card.total_bytes, card.free_bytes
    if integrated:
        total_bytes += min(card.shared_total_bytes, ram.total_bytes)
        free_bytes += min(card.shared_free_bytes, ram.free_bytes)
    return Figure(total_bytes=total_bytes, free_bytes=min(free_bytes, total_bytes), source=card.source)


def shares_ram(total_bytes: int, pool: RpcPool, ram: HostMemory) -> bool:
    """Return True if a lent device has no limit but the RAM of this machine."""
    match pool:
        case RpcPool.HOST:
            return True
        case RpcPool.OWN:
            return False
        case RpcPool.AUTO:
            return total_bytes >= _WHOLE_RAM_SHARE * ram.total_bytes


def lent_figure(total_bytes: int, free_bytes: int, pool: RpcPool, ram: HostMemory) -> Figure:
    """Device as its RPC server reports it; the server's figure counts only below what the machine has."""
    if shares_ram(total_bytes, pool, ram):
        return ram_figure(ram)
    if pool is RpcPool.OWN:
        return Figure(total_bytes=total_bytes, free_bytes=min(free_bytes, total_bytes), source="rpc")
    total_bytes = min(total_bytes, ram.total_bytes)
    return Figure(total_bytes=total_bytes, free_bytes=min(free_bytes, total_bytes, ram.free_bytes), source="rpc")


def predicted_figure(*, total_bytes: int, unused_free_bytes: int, promised_bytes: int) -> Figure:
    """Device that cannot be asked: what was free when nothing of ours was on it, less what is."""
    free_bytes = max(0, min(total_bytes, unused_free_bytes) - promised_bytes)
    return Figure(total_bytes=total_bytes, free_bytes=free_bytes, source=PROMISED, is_predicted=True)

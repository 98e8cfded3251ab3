"""Bytes a model takes with a layout, and how the scheduler counts them."""

from dataclasses import dataclass
from enum import StrEnum

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


class MemoryOrigin(StrEnum):
    """Origin of the figures of a report."""

    MEASURED = "measured"
    ALLOCATED = "allocated"
    ATTEMPTED = "attempted"
    ESTIMATED = "estimated"
    UNKNOWN = "unknown"

    @property
    def is_counted(self) -> bool:
        """Return True if an engine counted it, before, while or after it allocated."""
        return self in (MemoryOrigin.MEASURED, MemoryOrigin.ATTEMPTED, MemoryOrigin.ALLOCATED)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceBytes:
    """Bytes by class on one device, or in host RAM (then `device_id` is empty).

    Per layer: block 0 first, the output layer last, 0 where a layer lies elsewhere; empty where it is not known.
    """

    device_id: str = ""
    weights_bytes: int = 0
    cache_bytes: int = 0
    graph_bytes: int = 0
    layer_weights_bytes: tuple[int, ...] = ()
    layer_cache_bytes: tuple[int, ...] = ()
    input_weights_bytes: int = 0  # part of `weights_bytes`: what is read before block 0
    projector_bytes: int = 0  # beside the classes above: weights and graph of what sees
    node_id: str = ""  # of the node that lends the device; empty: the node that the runner runs on

    @property
    def total_bytes(self) -> int:
        """Return the bytes of all classes together."""
        return self.weights_bytes + self.cache_bytes + self.graph_bytes + self.projector_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """Bytes per device of the layout, in its order, and in host RAM."""

    origin: MemoryOrigin
    devices: tuple[DeviceBytes, ...]
    host: DeviceBytes = DeviceBytes()

    @property
    def total_bytes(self) -> int:
        """Return the bytes of all devices and the host, for display; never compared with one device."""
        return self.host.total_bytes + sum(device.total_bytes for device in self.devices)


def bytes_text(count: int) -> str:
    """Format bytes, as in "9.5 GiB"."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} B"


def memory_text(needed_bytes: int, available_bytes: int) -> str:
    """Return the text of a lack of memory; clients know it."""
    needed, available = bytes_text(needed_bytes), bytes_text(available_bytes)
    return f"model requires more system memory ({needed}) than is available ({available})"

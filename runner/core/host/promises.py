"""Check that a node's devices still have the memory that a placement was planned with. Pure.

The scheduler's figures are a moment old when Start arrives; the host checks them against what is free now, less what
the runners that are still loading will take.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """Bytes by device id. `later_bytes` come after the weights: cache, graph and projector."""

    weights_bytes: Mapping[str, int] = field(default_factory=dict)
    later_bytes: Mapping[str, int] = field(default_factory=dict)

    def total_bytes(self) -> dict[str, int]:
        """Everything, by device."""
        devices = self.weights_bytes.keys() | self.later_bytes.keys()
        return {
            device: self.weights_bytes.get(device, 0) + self.later_bytes.get(device, 0) for device in sorted(devices)
        }

    def less(self, freed: "MemoryNeed") -> "MemoryNeed":
        """Return the need that remains after another runner's memory is free."""

        def left(needed: Mapping[str, int], given: Mapping[str, int]) -> dict[str, int]:
            return {device: max(0, count - given.get(device, 0)) for device, count in needed.items()}

        return MemoryNeed(
            weights_bytes=left(self.weights_bytes, freed.weights_bytes),
            later_bytes=left(self.later_bytes, freed.later_bytes),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OutstandingLoad:
    """A runner that has not taken all of its memory yet. `fraction` of its weights is there."""

    need: MemoryNeed
    fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """The first device that lacks room."""

    device_id: str
    needed_bytes: int
    available_bytes: int


def outstanding_bytes(loading: Iterable[OutstandingLoad]) -> dict[str, int]:
    """Return the bytes that loading runners will still take, by device."""
    outstanding: dict[str, int] = {}
    for runner in loading:
        missing_share = 1.0 - min(1.0, max(0.0, runner.fraction))
        for device, total in runner.need.total_bytes().items():
            taken = runner.need.weights_bytes.get(device, 0) * (1.0 - missing_share)
            outstanding[device] = outstanding.get(device, 0) + max(0, total - int(taken))
    return outstanding


def find_shortfall(
    need: MemoryNeed, *, free_bytes: Mapping[str, int], loading: Iterable[OutstandingLoad]
) -> Shortfall | None:
    """Return the first device without enough room, or None if everything fits. A device that is not listed has none."""
    promised = outstanding_bytes(loading)
    for device, needed in need.total_bytes().items():
        available = max(0, free_bytes.get(device, 0) - promised.get(device, 0))
        if needed > available:
            return Shortfall(device_id=device, needed_bytes=needed, available_bytes=available)
    return None


def find_excess(
    need: MemoryNeed, *, promised_bytes: Mapping[str, int], limits_bytes: Mapping[str, int]
) -> Shortfall | None:
    """Return the first device on which everything together would pass the operator's limit, or None."""
    for device, needed in need.total_bytes().items():
        if device in limits_bytes:
            available = max(0, limits_bytes[device] - promised_bytes.get(device, 0))
            if needed > available:
                return Shortfall(device_id=device, needed_bytes=needed, available_bytes=available)
    return None

"""Placements on a device: live processes, and those that its driver has not released yet. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderProcess:
    """A process of this node that holds, or will hold, memory on devices."""

    placement_id: str
    device_ids: frozenset[str]
    pid: int | None = None  # None: another program lends the devices
    held_bytes: Mapping[str, int] = field(default_factory=dict)  # by device, as the process itself says


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """One placement on one device."""

    placement_id: str
    listed: bool
    held_bytes: int


@dataclass(slots=True)
class Holders:
    """Remembers whose process was whose: a driver lists a process for a while after its end."""

    _placements: dict[int, str] = field(default_factory=dict)  # by process id

    def see(self, living: Iterable[HolderProcess], listed: Iterable[int]) -> None:
        """Take in what lives now, and forget what has ended and no driver lists."""
        now = {one.pid: one.placement_id for one in living if one.pid is not None}
        still = set(listed)
        self._placements = {pid: name for pid, name in self._placements.items() if pid in still} | now

    def on(self, device_id: str, living: Iterable[HolderProcess], listed: Mapping[int, int]) -> list[Holder]:
        """Return the holders of a device; `listed` are process ids and bytes as its driver reports them."""
        held: dict[str, int] = {
            one.placement_id: one.held_bytes.get(device_id, 0) for one in living if device_id in one.device_ids
        }
        by_driver: set[str] = set()
        for pid, count in listed.items():
            if (name := self._placements.get(pid)) is not None:
                by_driver.add(name)
                held[name] = max(held.get(name, 0), count)
        return [Holder(placement_id=name, listed=name in by_driver, held_bytes=held[name]) for name in sorted(held)]

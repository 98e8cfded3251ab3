"""Which of several entries for one card is used. Pure.

A card may be listed by more than one backend and by more than one engine build. One entry stays: of one backend that
of the newest build that can do everything the other one can, of several backends CUDA's or ROCm's before Vulkan's.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from runner.core.devices.devices import DeviceType, EngineDevice

MIB = 1024 * 1024
SIZE_DIFFERENCE_BYTES = 512 * MIB
SIZE_DIFFERENCE_SHARE = 0.05
# Vendors' own backends know their cards better than a portable one. Any other backend lies between the two.
_FIRST_BACKENDS = ("CUDA", "ROCm", "HIP", "MUSA", "SYCL", "Metal", "MTL")
_LAST_BACKENDS = ("Vulkan", "OpenCL", "WebGPU")
_NOISE = re.compile(r"\((?:r|tm|c)\)|\b(?:nvidia|amd|intel|corporation|graphics|radv|mesa|geforce)\b|[^a-z0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """An entry of a probe. `build` orders engine builds, newer ones higher."""

    device: EngineDevice
    build: tuple[int, ...] = ()
    usable: bool = True  # its check has passed, or was not made


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate:
    """An entry that is left out, and the one that stands for the same card."""

    device: EngineDevice
    kept: EngineDevice


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """`kept` in the order of the probes."""

    kept: tuple[EngineDevice, ...]
    duplicates: tuple[Duplicate, ...] = ()
    empty: tuple[EngineDevice, ...] = ()  # without memory of their own


def choose_entries(listed: Sequence[Listed]) -> Choice:
    """One entry for each card. Entries of one backend and build are always different cards."""
    empty = tuple(one.device for one in listed if _has_no_memory(one.device))
    rest = [one for one in listed if not _has_no_memory(one.device)]
    builds = _builds_worth_having(rest)
    order = sorted(range(len(rest)), key=lambda index: (_rank(rest[index], builds), index))
    kept: list[int] = []
    duplicates: list[Duplicate] = []
    # Which groups (backend, build) a kept card has met already: two cards of one group are never the same card.
    met: dict[int, set[tuple[str, tuple[int, ...]]]] = {}
    for index in order:
        group = _group(rest[index])
        twin = next((one for one in kept if group not in met[one] and _same_card(rest[one], rest[index])), None)
        if twin is None:
            kept.append(index)
            met[index] = {group}
        else:
            met[twin].add(group)
            duplicates.append(Duplicate(device=rest[index].device, kept=rest[twin].device))
    return Choice(kept=tuple(rest[index].device for index in sorted(kept)), duplicates=tuple(duplicates), empty=empty)


def normal_name(description: str) -> str:
    """A product name without maker, marks and punctuation, as backends write it differently."""
    return " ".join(word for word in _NOISE.sub(" ", description.lower()).split() if word)


def _group(one: Listed) -> tuple[str, tuple[int, ...]]:
    return one.device.backend, one.build


def _has_no_memory(device: EngineDevice) -> bool:
    return device.total_bytes == 0 and device.type in (DeviceType.GPU, DeviceType.INTEGRATED)


def _builds_worth_having(listed: Sequence[Listed]) -> dict[str, list[tuple[int, ...]]]:
    """By backend, its builds from the best: the newest one that supports all that another one does comes first."""
    found: dict[str, dict[tuple[int, ...], set[str]]] = {}
    for one in listed:
        if one.usable:
            cards = found.setdefault(one.device.backend, {}).setdefault(one.build, set())
            cards.add(one.device.pci_id or normal_name(one.device.description))
    return {
        backend: sorted(builds, key=lambda build: (sum(builds[build] >= other for other in builds.values()), build))[
            ::-1
        ]
        for backend, builds in found.items()
    }


def _rank(one: Listed, builds: dict[str, list[tuple[int, ...]]]) -> tuple[bool, int, int]:
    order = builds.get(one.device.backend, [])
    build = order.index(one.build) if one.build in order else len(order)
    return not one.usable, backend_rank(one.device.backend), build


def backend_rank(backend: str) -> int:
    """Lower is better."""
    if backend in _FIRST_BACKENDS:
        return 0
    return 2 if backend in _LAST_BACKENDS else 1


def _same_card(one: Listed, other: Listed) -> bool:
    a, b = one.device, other.device
    if a.endpoint or b.endpoint or DeviceType.CPU in (a.type, b.type):
        return a.endpoint == b.endpoint and a.type is b.type and a.lent_number == b.lent_number
    if a.uuid and b.uuid:
        return a.uuid == b.uuid
    if a.pci_id and b.pci_id:
        return a.pci_id == b.pci_id
    allowed = max(SIZE_DIFFERENCE_BYTES, SIZE_DIFFERENCE_SHARE * max(a.total_bytes, b.total_bytes))
    return (
        normal_name(a.description) == normal_name(b.description)
        and bool(normal_name(a.description))
        and abs(a.total_bytes - b.total_bytes) <= allowed
    )

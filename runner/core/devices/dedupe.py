"""Choice between several entries for one card. Pure.

A card may be listed by more than one backend. One entry stays: CUDA's or ROCm's before Vulkan's.
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
    """An entry of a probe."""

    device: EngineDevice
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


def choose_entries(listed: Sequence[Listed]) -> Choice:
    """Choose one entry for each card. Entries of one backend are always different cards."""
    rest = [one for one in listed if not _has_no_memory(one.device)]
    order = sorted(
        range(len(rest)), key=lambda index: (not rest[index].usable, backend_rank(rest[index].device.backend), index)
    )
    kept: list[int] = []
    duplicates: list[Duplicate] = []
    # Backends that a kept card has met already: two cards of one backend are never the same card.
    met: dict[int, set[str]] = {}
    for index in order:
        backend = rest[index].device.backend
        twin = next((one for one in kept if backend not in met[one] and _same_card(rest[one], rest[index])), None)
        if twin is None:
            kept.append(index)
            met[index] = {backend}
        else:
            met[twin].add(backend)
            duplicates.append(Duplicate(device=rest[index].device, kept=rest[twin].device))
    return Choice(kept=tuple(rest[index].device for index in sorted(kept)), duplicates=tuple(duplicates))


def normal_name(description: str) -> str:
    """Return a product name without maker, marks and punctuation, as backends write it differently."""
    return " ".join(word for word in _NOISE.sub(" ", description.lower()).split() if word)


def _has_no_memory(device: EngineDevice) -> bool:
    return device.total_bytes == 0 and device.type in (DeviceType.GPU, DeviceType.INTEGRATED)


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

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


def choose_entries(listed: Sequence[Listed]) -> dict[int, int]:
    """Choose one entry for each card; return the index of the chosen one by the index of each entry.

    Entries of one backend are always different cards. Cards without memory are left out.
    """
    chosen: dict[int, int] = {}
    # Backends that a kept card has met already: two cards of one backend are never the same card.
    met: dict[int, set[str]] = {}
    order = [index for index, one in enumerate(listed) if not _has_no_memory(one.device)]
    order.sort(key=lambda index: (not listed[index].usable, backend_rank(listed[index].device.backend)))
    for index in order:
        backend = listed[index].device.backend
        twins = (one for one in met if backend not in met[one] and _same_card(listed[one], listed[index]))
        chosen[index] = next(twins, index)
        met.setdefault(chosen[index], set()).add(backend)
    return chosen


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

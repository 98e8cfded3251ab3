"""What a driver says about the memory of its cards. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
    """One card, seen over all processes. `source` names who said it: "nvml" or "sysfs"."""

    pci_id: str
    uuid: str  # empty: the driver gives none
    total_bytes: int
    free_bytes: int
    source: str


def normal_pci_id(text: str) -> str:
    """A PCI address as the engine writes it: "0000:c1:00.0". NVML has eight digits of domain and capital letters."""
    domain, separator, rest = text.strip().lower().partition(":")
    return f"{domain[-4:].rjust(4, '0')}{separator}{rest}"


def find_by_address(cards: list[GpuMemory], pci_id: str) -> GpuMemory | None:
    """The card at an address, or None. Virtual devices ("…-v1") are no cards of their own and have no figure."""
    return next((card for card in cards if pci_id and card.pci_id == pci_id), None)

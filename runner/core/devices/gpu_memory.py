"""Memory and condition of cards as a driver reports them. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Errors that a program causes; every other one points at the card, its driver or its bus.
# Source: NVIDIA's k8s-device-plugin, which ignores the same ones for the health of a card.
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})


@dataclass(frozen=True, slots=True, kw_only=True)
class CardVitals:
    """Condition of a card; None: its driver does not say."""

    utilization: float | None = None  # share of the driver's sampling period with a kernel running
    temperature_c: int | None = None
    power_w: float | None = None
    throttled: tuple[str, ...] = ()  # why its clocks are held down: "power", "thermal", "power_brake"
    ecc_corrected: int | None = None  # since the driver was loaded
    ecc_uncorrected: int | None = None
    xids: tuple[int, ...] = ()  # numbers of the driver's errors since the last report

    @classmethod
    def from_report(cls, report: Mapping[str, Any]) -> "CardVitals":
        """Parse a part of a child's report.

        Raises:
            TypeError, ValueError: it is something else.
        """
        return cls(**{**report, "throttled": tuple(report["throttled"]), "xids": tuple(map(int, report["xids"]))})


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
    """One card, or one MIG slice of a card, seen over all processes; a slice has the address of its card.

    `source` names the origin of the figures: "nvml" or "sysfs".
    """

    pci_id: str
    uuid: str  # empty: the driver gives none
    total_bytes: int
    free_bytes: int
    source: str
    driver: str = ""  # name and version
    unified: bool = False  # it has no memory of its own, and its bytes are 0: RAM is what it uses
    shared_total_bytes: int = 0  # RAM that an integrated card may use beside its own part (GTT)
    shared_free_bytes: int = 0
    device_id: str = ""  # under which its host has shown it; empty: not yet
    processes: tuple[tuple[int, int], ...] | None = None  # process id and bytes (0: not said); None: not listed
    vitals: CardVitals | None = None

    @property
    def key(self) -> str:
        """Return its identity: the PCI address, or the UUID of a slice."""
        return self.uuid if is_slice(self.uuid) else self.pci_id

    @classmethod
    def from_report(cls, report: Mapping[str, Any]) -> "GpuMemory":
        """Parse the report of a child process.

        Raises:
            TypeError, ValueError: it is something else.
        """
        processes = report.get("processes")
        if processes is not None:
            processes = tuple((int(pid), int(count)) for pid, count in processes)
        vitals = report.get("vitals")
        vitals = None if vitals is None else CardVitals.from_report(vitals)
        return cls(**{**report, "processes": processes, "vitals": vitals})


def normal_pci_id(text: str) -> str:
    """Write a PCI address as the engine does: "0000:c1:00.0". NVML has eight digits of domain and capital letters."""
    domain, separator, rest = text.strip().lower().partition(":")
    return f"{domain[-4:].rjust(4, '0')}{separator}{rest}"


def is_slice(device_id: str) -> bool:
    """Return True for the UUID of a MIG slice. A process can use one slice, and no other card beside it.

    Source: NVIDIA's MIG user guide, "CUDA visible devices".
    """
    return device_id.startswith("MIG-")


def find_card(cards: Iterable[GpuMemory], pci_id: str, device_id: str) -> GpuMemory | None:
    """Return a device's card, or None. Virtual devices ("…-v1") are no cards of their own and have no figure."""
    key = device_id if is_slice(device_id) else pci_id
    return next((card for card in cards if key and card.key == key), None)


def find_seen(cards: Sequence[GpuMemory], pci_id: str, visible: Sequence[str]) -> GpuMemory | None:
    """Return the card at an address in a process; of slices the first whose UUID is among the `visible` ones."""
    at_address = [card for card in cards if pci_id and card.pci_id == pci_id]
    slices = (card for uuid in visible for card in at_address if card.uuid == uuid and is_slice(uuid))
    return next(slices, None) or next((card for card in at_address if not is_slice(card.uuid)), None)


def has_moved(before: list[GpuMemory], now: list[GpuMemory], *, threshold_bytes: int) -> bool:
    """Return True if a change must be reported at once: another card, or more than so many bytes of difference."""
    old = {card.key: card for card in before}
    if old.keys() != {card.key for card in now}:
        return True
    if any(_pids(old[card.key]) - _pids(card) for card in now):
        return True  # a wait for freed memory depends on this
    return any(
        abs(old[card.key].free_bytes - card.free_bytes) > threshold_bytes
        or abs(old[card.key].shared_free_bytes - card.shared_free_bytes) > threshold_bytes
        for card in now
    )


def _pids(card: GpuMemory) -> set[int]:
    return {pid for pid, _ in card.processes or ()}

"""The cards that the kernel sees on the PCI bus, whatever their drivers say. Reading the list touches no card."""

import contextlib
from pathlib import Path

from runner.core.devices.gpu_memory import normal_pci_id

SYSFS = Path("/sys")
# The first digits of a PCI class: display controllers, and processing accelerators.
_CLASSES = ("0x03", "0x12")


def read_pci_cards(sysfs: Path = SYSFS) -> dict[str, str]:
    """By address, the driver with its version; empty: none is bound. Without a PCI bus there are no cards."""
    cards = {}
    for slot in sorted((sysfs / "bus/pci/devices").glob("*")):
        if _text(slot / "class").startswith(_CLASSES):
            driver = _driver(slot)
            version = _text(sysfs / "module" / driver / "version") if driver else ""
            cards[normal_pci_id(slot.name)] = f"{driver} {version}".strip()
    return cards


def _driver(slot: Path) -> str:
    with contextlib.suppress(OSError):
        return (slot / "driver").readlink().name
    return ""


def _text(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        return path.read_text().strip()
    return ""

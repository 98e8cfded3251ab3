"""A tree like /sys with cards on its PCI bus, which a test plugs in and out."""

import shutil
from pathlib import Path

GRAPHICS = "0x030000"


def plug_in(sysfs: Path, address: str, *, pci_class: str = GRAPHICS, driver: str = "", version: str = "") -> None:
    """A card at an address; again, and it has another driver."""
    slot = sysfs / "bus/pci/devices" / address
    slot.mkdir(parents=True, exist_ok=True)
    (slot / "class").write_text(f"{pci_class}\n")
    (slot / "driver").unlink(missing_ok=True)
    if driver:
        module = sysfs / "module" / driver
        module.mkdir(parents=True, exist_ok=True)
        (slot / "driver").symlink_to(module)
        if version:
            (module / "version").write_text(f"{version}\n")


def pull_out(sysfs: Path, address: str) -> None:
    """It is gone."""
    shutil.rmtree(sysfs / "bus/pci/devices" / address)

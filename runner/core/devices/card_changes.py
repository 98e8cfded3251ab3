"""Changes of the machine's cards: lists of them compared, and the kernel's events about hardware. Pure.

A kernel event is "ACTION@DEVPATH", a zero byte, and NAME=VALUE pairs with zero bytes between them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

# Where cards show: their slot, the files by which they are opened, and the drivers that are loaded for them.
_SUBSYSTEMS = frozenset({"accel", "drm", "kfd", "misc", "nvidia", "pci"})
_MODULES = ("amdgpu", "i915", "nouveau", "nvidia", "xe")


@dataclass(frozen=True, slots=True, kw_only=True)
class CardChanges:
    """PCI addresses. A card with another driver, or another version of it, is `changed`."""

    came: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()
    changed: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        """Return True if anything differs."""
        return bool(self.came or self.gone or self.changed)


def compare_cards(before: Mapping[str, str], now: Mapping[str, str]) -> CardChanges:
    """Compare lists of drivers by PCI address."""
    return CardChanges(
        came=frozenset(now.keys() - before.keys()),
        gone=frozenset(before.keys() - now.keys()),
        changed=frozenset(address for address in before.keys() & now.keys() if before[address] != now[address]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Uevent:
    """A kernel event about hardware that is added, removed or changed."""

    action: str
    path: str
    subsystem: str


def parse_uevent(message: bytes) -> Uevent | None:
    """Parse a kernel event; None for other messages, as those that udev passes on in a format of its own."""
    head, *pairs = message.split(b"\0")
    action, separator, path = head.decode(errors="replace").partition("@")
    if not separator:
        return None
    values = dict(pair.decode(errors="replace").partition("=")[::2] for pair in pairs if b"=" in pair)
    return Uevent(action=action, path=path, subsystem=values.get("SUBSYSTEM", ""))


def concerns_cards(event: Uevent) -> bool:
    """Return True if a card, or the driver of one, may have been added or removed."""
    if event.subsystem == "module":
        return event.path.rpartition("/")[2].replace("-", "_").startswith(_MODULES)
    if event.subsystem == "misc":  # where the files of ROCm's driver may be
        return event.path.endswith("/kfd")
    return event.subsystem in _SUBSYSTEMS

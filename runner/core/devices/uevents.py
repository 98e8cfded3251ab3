"""What the kernel says when hardware comes, goes or changes. Pure.

A message is "ACTION@DEVPATH", a zero byte, and NAME=VALUE pairs with zero bytes between them.
"""

from dataclasses import dataclass

# Where cards show: their slot, the files by which they are opened, and the drivers that are loaded for them.
_SUBSYSTEMS = frozenset({"accel", "drm", "kfd", "misc", "nvidia", "pci"})
_MODULES = ("amdgpu", "i915", "nouveau", "nvidia", "xe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Uevent:
    """One message."""

    action: str
    path: str
    subsystem: str


def parse_uevent(message: bytes) -> Uevent | None:
    """Read one; None: it is of another kind, as those that udev passes on in a format of its own."""
    head, *pairs = message.split(b"\0")
    action, separator, path = head.decode(errors="replace").partition("@")
    if not separator:
        return None
    values = dict(pair.decode(errors="replace").partition("=")[::2] for pair in pairs if b"=" in pair)
    return Uevent(action=action, path=path, subsystem=values.get("SUBSYSTEM", ""))


def concerns_cards(event: Uevent) -> bool:
    """Whether a card, or the driver of one, may have come or gone."""
    if event.subsystem == "module":
        return event.path.rpartition("/")[2].replace("-", "_").startswith(_MODULES)
    if event.subsystem == "misc":  # where the files of ROCm's driver may be
        return event.path.endswith("/kfd")
    return event.subsystem in _SUBSYSTEMS

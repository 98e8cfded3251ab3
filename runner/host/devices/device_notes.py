"""Notes of a host on its devices over its own restarts: speeds, repeated errors, sizes of lent ones."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from common.telemetry.logs import get_logger
from runner.core.devices.device_health import Condition, DeviceHealth, RunnerError
from runner.core.devices.gpu_memory import GpuMemory
from runner.host.home import write_durably

log = get_logger()

DEVICES_MAX = 256


@dataclass(slots=True, kw_only=True)
class DeviceNote:
    """One device. The speed holds for `speed_key` alone: engine build and driver. What replicas showed: `decode_…`."""

    speed_key: str = ""
    speed_bytes_s: int = 0
    decode_key: str = ""
    decode_bytes_s: float = 0.0
    decode_windows: int = 0
    decode_hours: list[list[float]] = field(default_factory=list)  # number of an hour, best of it
    process_key: str = ""
    process_samples: dict[str, int] = field(default_factory=dict)  # by process of a replica, bytes beside its model
    total_bytes: int = 0
    pci_id: str = ""  # where the card of this id is
    errors_at_unix_s: list[float] = field(default_factory=list)
    errors_of: list[list[str]] = field(default_factory=list)  # model and replica of each error
    worn_reason: str = ""  # set: excluded after repeated errors
    worn_driver: str = ""

    def health(self) -> DeviceHealth:
        """Return the health that the device starts with."""
        errors = tuple(
            RunnerError(at_unix_s=at_s, model_digest=model, replica=replica)
            for at_s, (model, replica) in zip(self.errors_at_unix_s, self.errors_of, strict=False)
        )
        if self.worn_reason:
            return DeviceHealth(
                condition=Condition.WORN, reason=self.worn_reason, errors=errors, driver=self.worn_driver
            )
        return DeviceHealth(errors=errors)

    def take_health(self, health: DeviceHealth) -> None:
        """Keep the part of its health that a restart must not clear."""
        worn = health.condition is Condition.WORN
        self.errors_at_unix_s = [one.at_unix_s for one in health.errors]
        self.errors_of = [[one.model_digest, one.replica] for one in health.errors]
        self.worn_reason, self.worn_driver = (health.reason, health.driver) if worn else ("", "")

    def speed(self, key: str) -> int:
        """Bytes per second, 0 if not known for this build and driver."""
        return self.speed_bytes_s if key == self.speed_key else 0


class DeviceNotes:
    """A file, read once and written when something changed. Without a path nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._written = b""
        self._notes: dict[str, DeviceNote] = {}
        if path is not None:
            with contextlib.suppress(OSError):
                self._written = path.read_bytes()
            try:
                self._notes = {name: DeviceNote(**note) for name, note in _entries(self._written).items()}
            except (ValueError, TypeError) as error:
                log.warning("devices.notes_unreadable", path=str(path), text=str(error))

    def of(self, device_id: str) -> DeviceNote:
        """Return the note about a device; changes to it are kept with the next `save`."""
        return self._notes.setdefault(device_id, DeviceNote())

    def knows(self, device_id: str) -> bool:
        """Return True if there is a note about a device."""
        return device_id in self._notes

    def show(self, device_id: str, pci_id: str) -> None:
        """Note the id under which the card at an address is shown, from now on also where its driver names it later."""
        if pci_id:
            for note in self._notes.values():
                note.pci_id = "" if note.pci_id == pci_id else note.pci_id
            self.of(device_id).pci_id = pci_id

    def name_cards(self, cards: Sequence[GpuMemory]) -> list[GpuMemory]:
        """Return the cards with the ids under which they are shown, and those that no driver has listed yet."""
        shown = {note.pci_id: device_id for device_id, note in self._notes.items() if note.pci_id}
        named = []
        for card in cards:
            device_id = shown.pop(card.pci_id, "")
            is_another = card.uuid and device_id not in (card.uuid, card.pci_id)  # it took the place of the one shown
            named.append(card if is_another else replace(card, device_id=device_id))
        unlisted = (
            GpuMemory(pci_id=pci_id, uuid="", total_bytes=0, free_bytes=0, source="", device_id=device_id)
            for pci_id, device_id in shown.items()
        )
        return [*named, *unlisted]

    def save(self) -> None:
        """Write if it differs from what is on disk."""
        kept = dict(list(self._notes.items())[-DEVICES_MAX:])
        content = orjson.dumps({name: asdict(note) for name, note in kept.items()}, option=orjson.OPT_INDENT_2)
        if self._path is None or content == self._written:
            return
        try:
            write_durably(self._path, content)
            self._written = content
        except OSError as error:
            log.warning("devices.notes_not_written", path=str(self._path), text=str(error))


def _entries(content: bytes) -> Mapping[str, dict[str, Any]]:
    entries = orjson.loads(content) if content else {}
    if not isinstance(entries, dict):
        raise TypeError("no object")
    return entries

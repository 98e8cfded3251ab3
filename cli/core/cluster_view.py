"""The state that GET /puna/v1/events streams: its events, a snapshot, and then changes to it. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Item = Mapping[str, Any]


def event_objects(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Name and data of each event; comments, and events without data, are left out."""
    name, data = "", list[str]()
    for line in lines:
        if not line:
            if data:
                yield name or "message", "\n".join(data)
            name, data = "", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)


@dataclass(slots=True)
class ClusterItems:
    """Sections of items by id, as they are now."""

    sections: dict[str, dict[str, Item]] = field(default_factory=dict)
    _older: int = 0  # time of the newest sample in the snapshot, which may be as old as the last reader

    def apply_event(self, event: str, data: Mapping[str, Any]) -> None:
        """Apply one event; events of other names change nothing."""
        if event == "snapshot":
            self.sections = {name: dict(items) for name, items in data.items()}
            self._older = max((item["at_unix_ms"] for item in self._items("samples")), default=0)
        elif event == "change":
            for name, change in data.items():
                section = self.sections.setdefault(name, {})
                section.update(change.get("set") or {})
                for key in change.get("gone") or ():
                    section.pop(key, None)

    @property
    def status(self) -> Item:
        """The gateway's own status."""
        return self.sections.get("gateway", {}).get("status", {})

    @property
    def nodes(self) -> list[Item]:
        """By id."""
        return self._items("nodes")

    @property
    def models(self) -> list[Item]:
        """By name."""
        return self._items("models")

    @property
    def requests(self) -> list[Item]:
        """The oldest first."""
        return sorted(self._items("requests"), key=lambda item: item.get("started_unix_ms") or 0)

    @property
    def samples(self) -> list[Item]:
        """Figures of the last minutes, one a second, the oldest first."""
        return sorted(self._items("samples"), key=lambda item: item["at_unix_ms"])

    @property
    def is_complete(self) -> bool:
        """The scheduler was heard or is away, and rates were measured since the snapshot."""
        heard = self.status.get("nodes_at_unix_ms") is not None or self.status.get("scheduler_error") is not None
        return heard and any(sample["at_unix_ms"] > self._older for sample in self.samples)

    def as_json(self, url: str) -> dict[str, Any]:
        """Return the object that `puna top --once --json` prints."""
        samples = self.samples
        return {
            "url": url,
            "gateway": self.status,
            "nodes": self.nodes,
            "models": self.models,
            "requests": self.requests,
            "figures": samples[-1] if samples else None,
        }

    def _items(self, section: str) -> list[Item]:
        return [item for _, item in sorted(self.sections.get(section, {}).items())]

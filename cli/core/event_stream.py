"""Server-sent events from their lines. Pure."""

from collections.abc import Iterable, Iterator


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

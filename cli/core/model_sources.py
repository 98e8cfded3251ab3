"""Files that a FROM or ADAPTER line names. Pure: the paths that exist are an argument."""

import re
from collections.abc import Collection
from pathlib import PurePath

SUFFIX = ".gguf"
_SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)


def with_other_parts(name: str, there: Collection[str]) -> list[str]:
    """Return a file and, if it is one of several parts, the others in order.

    Raises:
        ValueError: a part is not there.
    """
    found = _SPLIT.fullmatch(name)
    if found is None:
        return [name]
    count = int(found["count"])
    ending = name[len(name) - len(SUFFIX) :]
    parts = [f"{found['stem']}-{number:05d}-of-{found['count']}{ending}" for number in range(1, count + 1)]
    for part in parts:
        if part not in there:
            raise ValueError(f"{part} is missing: {name} is one of {count} parts")
    return parts


def models_in(names: Collection[str]) -> list[str]:
    """List the GGUF files of a directory."""
    return sorted(name for name in names if PurePath(name).suffix.lower() == SUFFIX)


def looks_like_path(source: str) -> bool:
    """Return True for a path or a file name, which is no model name."""
    return source.startswith(("/", "./", "../", "~")) or source.lower().endswith((SUFFIX, ".safetensors", ".bin"))

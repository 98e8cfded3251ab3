"""Finished stages in .venv/setup.json: what each was made from, so that only what has changed is made again."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ENGINE = "llama-cpp-python=="


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock file in two: the engine is compiled with flags of its own, and the rest is not compiled at all."""

    packages: str
    engine: str
    package_count: int


def split_lock(text: str) -> Lock:
    """Split the text of a lock file; an entry begins in the first column, its hashes and notes are indented."""
    parts: dict[bool, list[str]] = {True: [], False: []}
    is_engine = False
    for line in text.splitlines(keepends=True):
        if not line.startswith((" ", "#")):
            is_engine = line.startswith(_ENGINE)
        parts[is_engine].append(line)
    packages = "".join(parts[False])
    return Lock(packages, "".join(parts[True]), sum("==" in line for line in parts[False] if line[:1].isalnum()))


def digest(*texts: str) -> str:
    """Return one digest of several texts."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def digest_of_files(paths: Iterable[Path]) -> str:
    """Return one digest of several files, by name and content."""
    return digest(*(part for path in sorted(paths) for part in (path.name, path.read_text(encoding="utf-8"))))


class Record:
    """The file. A stage is unfinished from its beginning to its end, and stays so if it is interrupted or fails."""

    def __init__(self, path: Path, *, trusted: bool) -> None:
        """Read the file. `trusted`: finished stages count; unfinished ones always do."""
        self._path = path
        self._trusted = trusted
        try:
            stages = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            stages = {}
        self._stages: dict[str, dict[str, Any]] = stages if isinstance(stages, dict) else {}

    def made_from(self, stage: str) -> dict[str, Any]:
        """Return what the stage was last begun with; empty if it never was."""
        return dict(self._stages.get(stage, {}).get("from", {}))

    def is_finished(self, stage: str, made_from: dict[str, Any]) -> bool:
        """Return True if the stage has ended, with the same inputs."""
        return self._trusted and self._stages.get(stage) == {"from": made_from, "finished": True}

    def is_unfinished(self, stage: str) -> bool:
        """Return True if the stage was begun and has not ended."""
        return self._stages.get(stage, {}).get("finished") is False

    def begin(self, stage: str, made_from: dict[str, Any]) -> None:
        """Note that the stage begins."""
        self._write(stage, {"from": made_from, "finished": False})

    def finish(self, stage: str) -> None:
        """Note that the stage has ended well."""
        self._write(stage, {**self._stages[stage], "finished": True})

    def _write(self, stage: str, entry: dict[str, Any]) -> None:
        self._stages[stage] = entry
        self._path.parent.mkdir(exist_ok=True)
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(self._stages, indent=1) + "\n", encoding="utf-8")
        new.replace(self._path)

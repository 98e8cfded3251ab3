"""Manifests on disk: manifests/<host>/<namespace>/<model>/<tag>, bytes as they were received."""

import contextlib
import errno
import os
from dataclasses import dataclass
from pathlib import Path

from common.errors import InvalidRequest
from common.paths import open_regular
from runner.core.store.manifest import MANIFEST_BYTES_MAX
from runner.core.store.names import StoreName
from runner.host.home import sync_directory, write_durably

NAMES_MAX = 10_000
_DEPTH = 4
_MODE = 0o644  # other programs read the store, too


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Content of manifests/. While it has `strange` files, nothing is pruned."""

    names: tuple[StoreName, ...]
    strange: tuple[Path, ...]


class ManifestStore:
    """`directory` is made when something is first written."""

    def __init__(self, directory: Path) -> None:
        """`directory` is manifests/ of the store."""
        self.directory = directory

    def path(self, name: StoreName) -> Path:
        """Return the path of a manifest, present or not; in the spelling of one that is here in other letters.

        Raises:
            OSError: a link is on the way.
        """
        path = self.directory
        for part in name.parts():
            path /= _as_stored(path, part)
            if path.is_symlink():
                raise OSError(errno.ELOOP, "links are not followed in the store", str(path))
        return path

    def read(self, name: StoreName) -> bytes | None:
        """Return the manifest as received; None if there is none.

        Raises:
            OSError: there is one that cannot be read, or it is longer than any.
        """
        try:
            descriptor = open_regular(self.path(name), os.O_NOFOLLOW)
        except (FileNotFoundError, NotADirectoryError):
            return None
        with os.fdopen(descriptor, "rb") as file:
            if os.fstat(file.fileno()).st_size > MANIFEST_BYTES_MAX:
                raise OSError(errno.EFBIG, "no manifest", str(self.path(name)))
            return file.read(MANIFEST_BYTES_MAX)

    def write(self, name: StoreName, content: bytes) -> None:
        """Have the name stand for this. Durable when it returns; a reader sees the old or the new, never a mixture.

        Raises:
            OSError: the disk is full or the directory cannot be written.
        """
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, content, mode=_MODE)
        for folder in list(path.parent.parents)[: _DEPTH - 1]:
            sync_directory(folder)

    def delete(self, name: StoreName) -> bool:
        """Forget a name; whether it was here. Folders that are empty then go, too.

        Raises:
            OSError: the directory cannot be written.
        """
        path = self.path(name)
        try:
            path.unlink()
        except (FileNotFoundError, NotADirectoryError):
            return False
        folder = path.parent
        for _ in range(_DEPTH - 1):
            try:
                folder.rmdir()
            except OSError:
                break
            folder = folder.parent
        sync_directory(folder)
        return True

    def names(self) -> list[StoreName]:
        """Every name, sorted."""
        return list(self.listing().names)

    def listing(self) -> Listing:
        """Every name, and what lies among them that is none."""
        names: list[StoreName] = []
        strange: list[Path] = []
        self._walk(self.directory, (), names, strange)
        return Listing(names=tuple(sorted(names)), strange=tuple(sorted(strange)))

    def _walk(self, folder: Path, parts: tuple[str, ...], names: list[StoreName], strange: list[Path]) -> None:
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except FileNotFoundError:
            return
        except OSError:
            strange.append(folder)
            return
        for entry in entries:
            if entry.name.startswith("."):  # of the system, or half-written
                continue
            is_folder = entry.is_dir(follow_symlinks=False)
            if is_folder and len(parts) < _DEPTH - 1:
                self._walk(Path(entry.path), (*parts, entry.name), names, strange)
                continue
            if len(parts) == _DEPTH - 1 and entry.is_file(follow_symlinks=False) and len(names) < NAMES_MAX:
                with contextlib.suppress(InvalidRequest):
                    names.append(StoreName(parts[0], parts[1], parts[2], entry.name))
                    continue
            strange.append(Path(entry.path))


def _as_stored(folder: Path, part: str) -> str:
    """Return the entry that has this name, in whatever letters; the name itself if there is none."""
    if (folder / part).exists():
        return part
    try:
        entries = sorted(path.name for path in folder.iterdir())
    except OSError:
        return part
    lowered = part.lower()
    return next((entry for entry in entries if entry.lower() == lowered), part)

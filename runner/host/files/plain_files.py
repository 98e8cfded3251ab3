"""Plain GGUF files of the model directory: found by suffix, parts of one model taken together."""

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from common.paths import printable
from runner.core.model.file_names import has_suffix, why_unusable
from runner.core.model.split_files import SplitName, split_name

FILES_MAX = 10_000
FOLDERS_MAX = 64  # within each other
NO_ANSWER = "it does not answer"
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class FileStamp:
    """Changes whenever a file's content may have. `trouble`: why it is not opened."""

    path: Path
    device: int = 0
    inode: int = 0
    size_bytes: int = 0
    modified_ns: int = 0
    trouble: str = ""

    @classmethod
    def of(cls, path: Path, *, follow: bool = True) -> "FileStamp":
        """As the file is now.

        Raises:
            OSError: it is not there.
        """
        status = path.stat(follow_symlinks=follow)
        kind = _KINDS.get(stat.S_IFMT(status.st_mode))
        return cls(
            path=path,
            device=status.st_dev,
            inode=status.st_ino,
            size_bytes=status.st_size,
            modified_ns=status.st_mtime_ns,
            trouble=f"{printable(path)}: {kind}, not a regular file" if kind else "",
        )

    def cache_key(self) -> str:
        """Names this content on this machine, whatever the file is called."""
        return f"{self.device}:{self.inode}:{self.size_bytes}:{self.modified_ns}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainModel:
    """The files of one model, in the order of their names. `announced` is how many there should be."""

    files: tuple[FileStamp, ...]
    announced: int = 1

    @property
    def trouble(self) -> str:
        """Return why the model cannot be used, as far as that is seen without opening a file."""
        here, first = len(self.files), printable(self.files[0].path)
        missing = f"{first}: {here} of {self.announced} files of this model are here" if here != self.announced else ""
        return next((stamp.trouble for stamp in self.files if stamp.trouble), missing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """Options of a look at a directory.

    `skipped`: directories that are left out. `stuck`: paths that do not answer; a file among them is as it was `known`.
    `at` is called with each path before anything is asked of it.
    """

    skipped: frozenset[Path] = frozenset()
    stuck: frozenset[Path] = frozenset()
    known: Mapping[Path, FileStamp] = field(default_factory=dict)
    at: Callable[[Path], None] = lambda _path: None


def find_files(directory: Path, walk: Walk | None = None) -> list[FileStamp]:
    """Every *.gguf below the directory, sorted, whatever it is; what is hidden is left out.

    A directory is listed where it is called so and has no such file in it, or where it does not answer.
    """
    walk = walk or Walk()
    return sorted(_stamps(directory, directory, walk))[:FILES_MAX]


def plain_models(stamps: Iterable[FileStamp]) -> Iterator[PlainModel]:
    """Yield the models that the files are, parts of one model together."""
    parts: dict[tuple[Path, str, int], list[tuple[SplitName, FileStamp]]] = {}
    for stamp in stamps:
        part = split_name(stamp.path)
        if part is None:
            yield PlainModel(files=(stamp,))
        else:
            parts.setdefault((stamp.path.parent, part.stem, part.count), []).append((part, stamp))
    for (_, _, count), found in parts.items():
        found.sort(key=lambda item: item[0])
        yield PlainModel(files=tuple(stamp for _, stamp in found), announced=count)


def _stamps(folder: Path, root: Path, walk: Walk) -> Iterator[FileStamp]:
    if len(folder.parts) - len(root.parts) > FOLDERS_MAX:
        return
    if folder in walk.stuck:
        known = [stamp for path, stamp in walk.known.items() if path.is_relative_to(folder)]
        yield from known or [FileStamp(path=folder, trouble=f"{printable(folder)}: {NO_ANSWER}")]
        return
    walk.at(folder)
    try:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in found:
        path = folder / entry.name
        if entry.name.startswith(".") or path in walk.skipped:
            continue
        if entry.is_dir(follow_symlinks=False):
            below = list(_stamps(path, root, walk))
            yield from below or (_stamp(path, root, walk) if has_suffix(entry.name) else ())
        elif has_suffix(entry.name):
            yield from _stamp(path, root, walk)


def _stamp(path: Path, root: Path, walk: Walk) -> Iterator[FileStamp]:
    """One stamp; none for a file that was deleted in this moment."""
    trouble = why_unusable(str(path.relative_to(root)))
    if trouble:
        yield FileStamp(path=path, trouble=trouble)
        return
    if path in walk.stuck:
        yield walk.known.get(path) or FileStamp(path=path, trouble=f"{printable(path)}: {NO_ANSWER}")
        return
    walk.at(path)
    try:
        yield FileStamp.of(path)
    except OSError as error:
        if error.errno != errno.ENOENT or path.is_symlink():
            yield FileStamp(path=path, trouble=f"{printable(path)}: {_why_no_file(error)}")


def _why_no_file(error: OSError) -> str:
    match error.errno:
        case errno.ENOENT:
            return "the link leads nowhere"
        case errno.ELOOP:
            return "the link leads in a circle"
        case _:
            return f"it cannot be read: {error.strerror}"

"""Plain GGUF files of the model directory: found by suffix, named by file name, parts of one model taken together."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from runner.core.model.split_files import SplitName, split_name

SUFFIX = ".gguf"
FILES_MAX = 10_000
NAME_LENGTH_MAX = 256


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class FileStamp:
    """Changes whenever a file's content may have."""

    path: Path
    device: int
    inode: int
    size_bytes: int
    modified_ns: int

    @classmethod
    def of(cls, path: Path, *, follow: bool = True) -> "FileStamp":
        """As the file is now.

        Raises:
            OSError: it is not there.
        """
        status = path.stat(follow_symlinks=follow)
        return cls(
            path=path,
            device=status.st_dev,
            inode=status.st_ino,
            size_bytes=status.st_size,
            modified_ns=status.st_mtime_ns,
        )

    def cache_key(self) -> str:
        """Names this content on this machine, whatever the file is called."""
        return f"{self.device}:{self.inode}:{self.size_bytes}:{self.modified_ns}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainModel:
    """The files of one model, in the order of their names. `announced` is how many there should be."""

    name: str
    files: tuple[FileStamp, ...]
    announced: int = 1


def model_name(path: Path) -> str:
    """File name without suffix and part, with the tag ":latest" unless it has one."""
    part = split_name(path)
    stem = part.stem if part is not None else path.name.removesuffix(SUFFIX)
    return stem if ":" in stem else f"{stem}:latest"


def find_files(directory: Path, *, skipped: Iterable[Path] = ()) -> list[FileStamp]:
    """Every *.gguf below the directory, sorted; hidden directories and what cannot be read are left out."""
    left_out = set(skipped)
    stamps = []
    for parent, directories, names in os.walk(directory):
        directories[:] = sorted(
            name for name in directories if not name.startswith(".") and Path(parent, name) not in left_out
        )
        for name in names:
            if not name.endswith(SUFFIX) or name.startswith(".") or len(name) > NAME_LENGTH_MAX:
                continue
            try:
                stamps.append(FileStamp.of(Path(parent) / name))
            except OSError:
                continue
    return sorted(stamps)[:FILES_MAX]


def plain_models(stamps: Iterable[FileStamp]) -> Iterator[PlainModel]:
    """The models that the files are, parts of one model together."""
    parts: dict[tuple[Path, str, int], list[tuple[SplitName, FileStamp]]] = {}
    for stamp in stamps:
        part = split_name(stamp.path)
        if part is None:
            yield PlainModel(name=model_name(stamp.path), files=(stamp,))
        else:
            parts.setdefault((stamp.path.parent, part.stem, part.count), []).append((part, stamp))
    for (_, _, count), found in parts.items():
        found.sort(key=lambda item: item[0])
        files = tuple(stamp for _, stamp in found)
        yield PlainModel(name=model_name(files[0].path), files=files, announced=count)

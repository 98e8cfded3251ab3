"""Unfinished files of a store as a host finds them at its start: named in the log, kept where a pull can go on."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from common.paths import printable, set_aside
from common.telemetry.logs import get_logger
from runner.core.registry.parts import decode_state, done_bytes
from runner.core.store.digests import parse_digest
from runner.host.files.blobs import PARTIAL_SUFFIX, BlobStore
from runner.host.registry.partial_file import STATE_SUFFIX, here_bytes, state_path

log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """A download that a pull can resume."""

    path: Path
    done_bytes: int
    size_bytes: int


def unfinished(blobs: BlobStore) -> list[Unfinished]:
    """Return the downloads that can be resumed, by path; changes nothing."""
    found = (_resumable(path) for path in sorted(blobs.directory.glob(f"*{PARTIAL_SUFFIX}")))
    return [one for one in found if one is not None]


def tidy_up(blobs: BlobStore) -> None:
    """Keep downloads that a pull can resume, delete the rest, set aside what is no file. Nothing here stops a start."""
    for path in (*blobs.directory.glob(f"*{PARTIAL_SUFFIX}"), *_lone_states(blobs.directory)):
        try:
            _settle(path)
        except OSError as error:
            log.warning("blob.leftover", path=printable(path), text=str(error))


def _lone_states(directory: Path) -> Iterator[Path]:
    """Yield the notes of downloads whose bytes are gone."""
    for path in directory.glob(f"*{PARTIAL_SUFFIX}{STATE_SUFFIX}"):
        if not os.path.lexists(path.with_name(path.name.removesuffix(STATE_SUFFIX))):
            yield path


def _settle(path: Path) -> None:
    if not stat.S_ISREG(path.lstat().st_mode):
        log.warning("blob.leftover", path=printable(path), set_aside=set_aside(path).name, text="it is no file")
        return
    download = _resumable(path)
    if download is not None:
        log.warning(
            "blob.unfinished",
            path=printable(path),
            done_bytes=download.done_bytes,
            size_bytes=download.size_bytes,
            text="the next pull of its model goes on with it",
        )
        return
    freed = here_bytes(path)
    path.unlink()
    state_path(path).unlink(missing_ok=True)
    log.warning("blob.leftover", path=printable(path), freed_bytes=freed, text="deleted; nothing can go on with it")


def _resumable(path: Path) -> Unfinished | None:
    """Return a download whose note fits its file; None: there is none, as of an upload."""
    try:
        size_bytes = path.lstat().st_size
        digest = parse_digest(path.name.removesuffix(PARTIAL_SUFFIX))
        parts = decode_state(state_path(path).read_bytes(), digest=digest, size_bytes=size_bytes)
    except (OSError, ValueError):
        return None
    return Unfinished(path=path, done_bytes=done_bytes(parts), size_bytes=size_bytes) if parts is not None else None

"""The host's directory: its lock, the node's id, and its paths."""

import asyncio
import contextlib
import errno
import fcntl
import os
from pathlib import Path
from typing import Self

from common.errors import StartupError
from common.ids import random_id
from common.paths import PRIVATE_MODE, set_aside
from common.telemetry.logs import get_logger
from common.trust.roles import ID_PATTERN

# sockaddr_un has 108 bytes with the final NUL.
SOCKET_PATH_BYTES_MAX = 107
LOGS_KEPT = 64
# Code in a runner can print without end, and an honest one lives for months.
LOG_BYTES_MAX = 64 * 2**20
LOG_END_BYTES = 2**20  # of a log that is cut
LOG_LOOK_S = 1.0

log = get_logger()


class HostHome:
    """PUNA_HOME, owned by one host at a time. Use as a context manager: leaving gives the directory back."""

    def __init__(self, directory: Path) -> None:
        """Take the directory.

        Raises:
            StartupError: it cannot be created, its path is too long for sockets, or another host owns it.
        """
        self.directory = directory
        # Its own folder: `puna up` keeps the sockets of the other services in run/, and leftovers here are removed.
        self.run_directory = directory / "runners"
        self.logs_directory = directory / "logs"
        self.cache_directory = directory / "cache"
        self.fence_path = directory / "fence.json"
        self.states_directory = directory / "states"
        self.states_key_path = directory / "states.key"
        self.forgotten_path = directory / "states-forgotten.json"
        try:
            for path in (directory, self.run_directory, self.logs_directory, self.cache_directory):
                path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(directory / "host.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StartupError(f"cannot use {directory}: {error.strerror}") from error
        if len(os.fsencode(self.socket_path("0" * 12))) > SOCKET_PATH_BYTES_MAX:
            raise StartupError(f"{directory} is too long a path for Unix sockets; set PUNA_HOME to a shorter one")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            if error.errno == errno.EWOULDBLOCK:
                raise StartupError(f"another host already runs in {directory}") from error
            raise StartupError(f"cannot lock {directory}: {error.strerror}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    def node_id(self, wanted: str) -> str:
        """Return the id of this node: `wanted`, else the one that was drawn when this directory was first used.

        Raises:
            StartupError: `wanted` cannot be an id.
        """
        if wanted:
            if not ID_PATTERN.fullmatch(wanted):
                raise StartupError("PUNA_NODE_ID may have letters, digits, dots, dashes and underscores, at most 63")
            return wanted
        path = self.directory / "node-id"
        if path.exists():
            kept = path.read_text(errors="replace").strip()
            if ID_PATTERN.fullmatch(kept):
                return kept
            set_aside(path)
        drawn = random_id("node-", 10)
        write_durably(path, drawn.encode())
        return drawn

    def socket_path(self, short_name: str) -> Path:
        """Return the Unix socket of a runner, in a folder that only this runner can write, and only until its hello."""
        return self.run_directory / short_name / "sock"

    def states_socket_path(self, short_name: str) -> Path:
        """Return the Unix socket on which a runner hands over saved states, in the same folder."""
        return self.run_directory / short_name / "kv"

    def prune_logs(self) -> None:
        """Keep the newest logs of runners; each start adds one."""
        logs = sorted(self.logs_directory.glob("runner-*.log"), key=lambda path: path.stat().st_mtime_ns)
        for path in logs[:-LOGS_KEPT]:
            path.unlink(missing_ok=True)

    async def watch_logs(self) -> None:
        """Cut logs that grow too long, for ever."""
        while True:
            await asyncio.to_thread(self.cut_logs)
            await asyncio.sleep(LOG_LOOK_S)

    def cut_logs(self) -> None:
        """Keep only the end of each log of a runner that has grown too long. Runners append to them meanwhile."""
        for path in self.logs_directory.glob("runner-*.log"):
            with contextlib.suppress(OSError):
                size_bytes = path.stat().st_size
                if size_bytes <= LOG_BYTES_MAX:
                    continue
                with path.open("rb+") as file:
                    file.seek(-LOG_END_BYTES, os.SEEK_END)
                    end = file.read(LOG_END_BYTES)
                    file.truncate(0)
                with path.open("ab") as file:
                    file.write(end)
                log.warning("log.cut", path=str(path), size_bytes=size_bytes)


def write_durably(path: Path, content: bytes, *, mode: int = PRIVATE_MODE) -> None:
    """Replace a file so that after a crash either the old or the new content is there, never a mixture.

    Raises:
        OSError: the disk is full or the directory cannot be written; nothing is left of it.
    """
    temporary = path.with_name(f".{path.name}.new")  # hidden: readers of a directory take it for nothing of theirs
    try:
        # A link at this path is refused, not written through.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        with os.fdopen(os.open(temporary, flags, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Names in it survive a crash from here on."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

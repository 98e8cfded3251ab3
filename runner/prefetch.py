"""Warms the page cache with a model file on a network file system while the engine loads it.

The engine reads a file from front to back, one request at a time; a network file system is fast only with several. Here
each thread reads a long range of its own through a descriptor of its own, well ahead of the engine. Local disks gain
nothing and are left alone.
"""

import os
import threading
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path

from common.telemetry.logs import get_logger

log = get_logger()

THREADS = 8
CHUNK_BYTES = 4 * 1024 * 1024  # a stop is seen after one of them
MOUNTINFO = Path("/proc/self/mountinfo")

# What reads over a network, where one reader after the other leaves most of the link idle.
NETWORK_KINDS = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "glusterfs", "beegfs", "gpfs", "afs", "9p", "virtiofs"),
        *("fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "fuse.glusterfs", "fuse.juicefs", "fuse.goofys"),
    }
)

Read = Callable[[int, Sequence[memoryview], int], int]


class PrefetchMode(StrEnum):
    """Condition for reading files ahead."""

    AUTO = "auto"  # on network file systems
    ON = "on"
    OFF = "off"


class Prefetch:
    """Threads that read files. `stop` may be called from any thread, and more than once."""

    def __init__(self, paths: Sequence[Path], *, threads: int = THREADS, read: Read = os.preadv) -> None:
        """`read` is what fills a buffer from an offset of a descriptor."""
        self._read = read
        self._stopping = threading.Event()
        ranges = [piece for path in paths for piece in _ranges(path, threads)]
        self._threads = [
            threading.Thread(target=self._run, args=piece, name="prefetch", daemon=True) for piece in ranges
        ]

    def start(self) -> None:
        """Begin to read."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Read no further chunk. Does not wait: a read that hangs in the network must not delay the caller."""
        self._stopping.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the threads; whether all have ended."""
        for thread in self._threads:
            thread.join(timeout_s)
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self, path: Path, start: int, stop: int) -> None:
        buffer = memoryview(bytearray(CHUNK_BYTES))
        try:
            # Its own descriptor: the kernel reads ahead for each of them by itself.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                while start < stop and not self._stopping.is_set():
                    count = self._read(descriptor, [buffer[: min(CHUNK_BYTES, stop - start)]], start)
                    if count <= 0:
                        return
                    start += count
            finally:
                os.close(descriptor)
        except OSError as error:  # the load itself meets it too, and says why
            log.info("prefetch.failed", path=str(path), text=str(error))


def wanted_files(mode: PrefetchMode, paths: Sequence[Path]) -> list[Path]:
    """Return the files that are worth reading ahead."""
    if mode is PrefetchMode.OFF:
        return []
    return [path for path in paths if path.is_file() and (mode is PrefetchMode.ON or _is_remote(path))]


def _is_remote(path: Path) -> bool:
    try:
        device = path.stat().st_dev
        kind = kind_of_device(MOUNTINFO.read_text(), major=os.major(device), minor=os.minor(device))
    except OSError:
        return False
    return kind in NETWORK_KINDS


def _ranges(path: Path, threads: int) -> list[tuple[Path, int, int]]:
    """Return the file in one range for each thread, whole chunks each."""
    size = path.stat().st_size
    chunks = -(-size // CHUNK_BYTES)
    each = max(1, -(-chunks // threads)) * CHUNK_BYTES
    return [(path, start, min(start + each, size)) for start in range(0, size, each)]


def kind_of_device(mountinfo: str, *, major: int, minor: int) -> str:
    """Return the kind of a file system by the device number of a file on it; empty if no mount has it.

    Lines of `mountinfo`: `36 35 98:0 /root /mount options - kind source options`, with optional fields before the dash.
    """
    wanted = f"{major}:{minor}"
    for line in mountinfo.splitlines():
        mount, dash, source = line.partition(" - ")
        fields = mount.split()
        if dash and len(fields) > 2 and fields[2] == wanted:
            return source.split()[0]
    return ""

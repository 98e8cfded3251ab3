"""The file of keys on disk: read with its pepper, read again when it changes, kept when it breaks."""

import asyncio
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from common.errors import StartupError
from common.logs import get_logger
from gateway.core.key_file import read_keys
from gateway.core.keys import KeyRing

log = get_logger()

# A revoked key is refused after this long at the latest, plus the time to read the file.
LOOK_EVERY_S = 1.0
PEPPER_BYTES = 32
_FILE_BYTES_MAX = 16 * 1024 * 1024

Stamp = tuple[int, int, int, int]


def pepper_path(keys: Path) -> Path:
    """Where the pepper of a file of keys is."""
    return keys.with_name(keys.name + ".pepper")


def read_private(path: Path) -> bytes:
    """A file that only its owner may read.

    Raises:
        OSError: it cannot be read.
        ValueError: others may read or change it, or it is none.
    """
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077:
            raise ValueError(f"{path} must be a file with mode 0600")
        if status.st_size > _FILE_BYTES_MAX:
            raise ValueError(f"{path} has more than {_FILE_BYTES_MAX} bytes")
        return file.read()


def read_ring(path: Path) -> KeyRing:
    """The keys of a file, with the pepper beside it.

    Raises:
        OSError: one of the two cannot be read.
        ValueError: one of the two is not what it should be.
    """
    pepper = read_private(pepper_path(path))
    if len(pepper) != PEPPER_BYTES:
        raise ValueError(f"{pepper_path(path)} must have {PEPPER_BYTES} bytes")
    return KeyRing.of(pepper, read_keys(read_private(path).decode()))


@dataclass(slots=True)
class KeyStore:
    """The keys as last read well."""

    path: Path
    ring: KeyRing
    _stamp: Stamp | None
    _told: object = ()  # the stamp of what was last found broken

    @classmethod
    def open(cls, path: Path) -> "KeyStore":
        """Read the keys for the first time.

        Raises:
            StartupError: they cannot be read; nothing is served without them.
        """
        stamp = _stamp(path)
        try:
            return cls(path, read_ring(path), stamp)
        except (OSError, ValueError) as error:
            raise StartupError(f"PUNA_API_KEYS_FILE: {error}; `puna keys create` makes one") from error

    async def watch(self) -> None:
        """Read the file again whenever it changes, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await asyncio.to_thread(self.refresh)

    def refresh(self) -> None:
        """Read the file again if it changed. One that is broken or gone changes nothing, and is told once."""
        stamp = _stamp(self.path)
        if stamp == self._stamp:
            return
        try:
            self.ring = read_ring(self.path)
        except (OSError, ValueError) as error:
            if stamp != self._told:
                log.error("keys.broken", path=str(self.path), reason=str(error), kept=len(self.ring.keys))
            self._told = stamp
        else:
            self._stamp = stamp
            log.info("keys.read", path=str(self.path), keys=len(self.ring.keys))


def _stamp(path: Path) -> Stamp | None:
    """What differs when a file was written again or replaced; None: it is not there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode

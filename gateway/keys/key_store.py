"""The keys that a gateway knows.

Those of the file are read again when it changes, and kept when it breaks; those made through the API lie in a cache
beside it. Where both have an id, the file counts.
"""

import asyncio
import fcntl
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from common.errors import StartupError
from common.paths import replace_file
from common.telemetry.logs import get_logger
from common.telemetry.metrics import CONFIG_GENERATION
from gateway.core.keys.key_file import read_keys
from gateway.core.keys.key_records import KeyRecords, read_cache, write_cache
from gateway.core.keys.keys import Key, KeyRing

log = get_logger()

# A revoked key is refused after this long at the latest, plus the time to read the file.
LOOK_EVERY_S = 1.0
PEPPER_BYTES = 32
_FILE_BYTES_MAX = 16 * 1024 * 1024

Stamp = tuple[int, int, int, int]


def pepper_path(keys: Path) -> Path:
    """Return the path of the pepper for a file of keys."""
    return keys.with_name(keys.name + ".pepper")


def cache_path(keys: Path) -> Path:
    """Return the path of a gateway's copy of the keys made through the API."""
    return keys.with_name(keys.name + ".cache")


def read_private(path: Path) -> bytes:
    """Read a file that only its owner may read.

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
    """Read the keys of a file, with the pepper beside it.

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
    """The keys as last read well. `ring` has them all."""

    path: Path
    ring: KeyRing
    _file: KeyRing
    _stamp: Stamp | None
    records: KeyRecords
    _told: object = ()  # the stamp of what was last found broken
    _told_cache: str = ""
    _used_unix_s: dict[str, int] = field(default_factory=dict)  # not written to Redis yet

    @classmethod
    def open(cls, path: Path) -> "KeyStore":
        """Read the keys for the first time.

        Raises:
            StartupError: they cannot be read; nothing is served without them.
        """
        stamp = _stamp(path)
        try:
            ring = read_ring(path)
        except (OSError, ValueError) as error:
            raise StartupError(f"PUNA_API_KEYS_FILE: {error}; `puna keys create` makes one") from error
        CONFIG_GENERATION.labels(file="keys").inc()
        store = cls(path, ring, ring, stamp, KeyRecords(ring.pepper))
        store._read_cache()
        return store

    async def watch(self) -> None:
        """Read the file again whenever it changes, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await self.refresh()

    async def refresh(self) -> None:
        """Read the file again if it changed. One that is broken or gone changes nothing, and is logged once."""
        stamp = await asyncio.to_thread(_stamp, self.path)
        if stamp == self._stamp:
            return
        try:
            ring = await asyncio.to_thread(read_ring, self.path)
        except (OSError, ValueError) as error:
            if stamp != self._told:
                log.error("keys.broken", path=str(self.path), reason=str(error), kept=len(self.ring.keys))
            self._told = stamp
            return
        if ring.pepper != self._file.pepper:  # nothing that was sealed with the old one can be checked any more
            self.records = KeyRecords(ring.pepper)
        self._file = ring
        self._join()
        self._stamp = stamp
        CONFIG_GENERATION.labels(file="keys").inc()
        log.info("keys.read", path=str(self.path), keys=len(self._file.keys))

    def is_in_file(self, key_id: str) -> bool:
        """Return True if the file has the key, and so decides about it."""
        return key_id in self._file.keys

    def all_keys(self) -> list[Key]:
        """List every key, oldest first."""
        return sorted(self.ring.keys.values(), key=lambda key: (key.created_unix_s, key.id))

    def learn(self, made: Mapping[str, str], revoked: Mapping[str, str]) -> bool:
        """Take over records that were made elsewhere; True if something was new. They count from now on."""
        refused = len(self.records.refused)
        news = self.records.learn(made, revoked)
        if len(self.records.refused) > refused:
            log.warning("keys.records_refused", count=len(self.records.refused) - refused)
        if news:
            self._join()
        return news

    async def keep(self) -> None:
        """Write the cache, together with what another gateway wrote there. A place that cannot be written is logged."""
        path, records = cache_path(self.path), self.records
        try:
            found = await asyncio.to_thread(_write_cache, path, dict(records.made), dict(records.revoked))
        except (OSError, ValueError) as error:
            if self._told_cache != str(error):
                log.error("keys.cache_unwritable", path=str(path), reason=str(error))
            self._told_cache = str(error)
        else:
            self.learn(*found)

    def used(self, key_id: str, now_unix_s: int) -> None:
        """Note the use of a key."""
        self._used_unix_s[key_id] = now_unix_s

    def take_used(self) -> dict[str, int]:
        """Return the uses of keys since the last call, and forget them."""
        used, self._used_unix_s = self._used_unix_s, {}
        return used

    def put_used_back(self, used: Mapping[str, int]) -> None:
        """Keep the uses that could not be written."""
        self._used_unix_s = {**used, **self._used_unix_s}

    def used_unix_s(self, key_id: str) -> int | None:
        """Return the last use of a key here that is not reported yet."""
        return self._used_unix_s.get(key_id)

    def _read_cache(self) -> None:
        path = cache_path(self.path)
        try:
            self.learn(*_read_cache(path))
        except (OSError, ValueError) as error:
            log.error("keys.cache_broken", path=str(path), reason=str(error))

    def _join(self) -> None:
        made = {key.id: key for key in self.records.all_keys()}
        self.ring = KeyRing.of(self._file.pepper, {**made, **self._file.keys}.values())


Sealed = dict[str, str]


def _read_cache(path: Path) -> tuple[Sealed, Sealed]:
    try:
        return read_cache(read_private(path).decode())
    except FileNotFoundError:
        return {}, {}


def _write_cache(path: Path, made: Sealed, revoked: Sealed) -> tuple[Sealed, Sealed]:
    """Join the cache with these records; returns what was there. Gateways of one machine may share the file."""
    descriptor = os.open(path.with_name(path.name + ".lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            there = _read_cache(path)
        except ValueError:  # broken: what is known here is better than nothing
            there = ({}, {})
        replace_file(path, write_cache(there[0] | made, there[1] | revoked).encode())
    finally:
        os.close(descriptor)
    return there


def _stamp(path: Path) -> Stamp | None:
    """Return a stamp that differs after a file was written or replaced; None: it is missing."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode

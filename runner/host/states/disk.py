"""The disk tier: one file for each state, authenticated with a key of this node.

    state | record (JSON) | its length (4 bytes) | MAC of record and length (32 bytes)

The record has the digest of the state, so the record can be trusted without reading the state, and the state is
checked as it is read. A file appears by a rename, complete and synchronised. Files with other names are left alone.
"""

import contextlib
import hashlib
import hmac
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.telemetry.logs import get_logger
from runner.core.states import messages
from runner.core.states.catalogue import StateEntry
from runner.core.states.gate import Tier
from runner.host.home import sync_directory, write_durably
from runner.sealed_memory import create_memory_file, seal

log = get_logger()

MAC_BYTES = 32
_KEY_BYTES = 32
_LENGTH_BYTES = 4
_CHUNK_BYTES = 4 * 1024 * 1024
_RECORD_BYTES_MAX = 1024 * 1024
_NAME = re.compile(r"[0-9a-f]{32}\.state")
_UNFINISHED = re.compile(r"[0-9a-f]{32}\.new")


class BadStateFile(Exception):
    """A file that this node did not write, or that changed since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRecord:
    """A state and what it belongs to. `domain` is what the host knows of its model, `salt` names the tenant."""

    entry: StateEntry
    domain: bytes
    salt: str
    saved_at_s: float  # Unix time

    @property
    def id(self) -> str:
        """Return a name that differs for equal keys of different domains."""
        return state_id(self.domain, self.entry.key)

    def to_json(self, **more: str) -> bytes:
        """Return everything as JSON, for files and for other nodes."""
        fields = {
            **messages.entry_fields(self.entry),
            "domain": self.domain.hex(),
            "salt": self.salt,
            "saved_at_s": self.saved_at_s,
            **more,
        }
        return json.dumps(fields).encode()

    @classmethod
    def from_json(cls, text: bytes, *, tier: Tier) -> "StateRecord":
        """Read what `to_json` gave.

        Raises:
            BadMessage, ValueError, KeyError, TypeError: it is something else.
        """
        fields = json.loads(text)
        return cls(
            entry=messages.read_entry(fields, tier=tier),
            domain=bytes.fromhex(fields["domain"]),
            salt=messages.read_salt(fields),
            saved_at_s=float(fields["saved_at_s"]),
        )


def state_id(domain: bytes, key: str) -> str:
    """Return the id of the state with a key in a domain."""
    return hashlib.blake2b(key.encode(), key=domain, digest_size=16).hexdigest()


class DiskTier:
    """Files of one directory. Every method blocks: not for the event loop."""

    def __init__(self, directory: Path, key_path: Path) -> None:
        """Have the directory and the node's key.

        Raises:
            OSError: one of them cannot be had.
        """
        self.directory = directory
        directory.mkdir(mode=0o700, exist_ok=True)
        if not key_path.exists():
            write_durably(key_path, os.urandom(_KEY_BYTES))
        self._key = key_path.read_bytes()
        if len(self._key) != _KEY_BYTES:
            raise OSError(f"{key_path} is no key of {_KEY_BYTES} bytes; remove it to have a new one")

    def read_records(self) -> Iterator[StateRecord]:
        """Yield what is there, the least recently used first. Unfinished files are removed, damaged ones too."""
        found: list[tuple[float, StateRecord]] = []
        for path in self.directory.iterdir():
            if _UNFINISHED.fullmatch(path.name):
                path.unlink(missing_ok=True)
            elif _NAME.fullmatch(path.name):
                try:
                    found.append((path.stat().st_mtime, self._read_record(path)))
                except (OSError, BadStateFile) as error:
                    log.warning("states.file_refused", path=str(path), text=str(error))
                    with contextlib.suppress(OSError):
                        path.unlink(missing_ok=True)
        for _, record in sorted(found, key=lambda one: one[0]):
            yield record

    def write(self, record: StateRecord, descriptor: int) -> None:
        """Write a state from its memory file.

        Raises:
            OSError: the disk is full or does not take it; nothing is left of it.
        """
        temporary = self.directory / f"{record.id}.new"
        digest = hashlib.blake2b(digest_size=MAC_BYTES)
        try:
            with temporary.open("wb") as file:
                os.fchmod(file.fileno(), 0o600)
                for chunk in _chunks(descriptor, record.entry.size_bytes):
                    digest.update(chunk)
                    file.write(chunk)
                file.write(self._closing(record, digest.hexdigest()))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._path(record.id))
            sync_directory(self.directory)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise

    def read(self, wanted_id: str) -> int:
        """Return a sealed memory file with a state.

        Raises:
            OSError: it cannot be read.
            BadStateFile: it is not what was written.
        """
        path = self._path(wanted_id)
        record, fields = self._authenticated(path)
        if record.id != wanted_id:
            raise BadStateFile("it is of another state")
        digest = hashlib.blake2b(digest_size=MAC_BYTES)
        descriptor = create_memory_file()
        try:
            with path.open("rb") as file:
                for chunk in _chunks(file.fileno(), record.entry.size_bytes):
                    digest.update(chunk)
                    os.write(descriptor, chunk)
            if not hmac.compare_digest(digest.hexdigest(), str(fields["digest"])):
                raise BadStateFile("it has changed")
            seal(descriptor)
            os.utime(path)  # the order of use survives a restart
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def remove(self, unwanted_id: str) -> None:
        """Remove a state, if it is there."""
        with contextlib.suppress(OSError):
            self._path(unwanted_id).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}.state"

    def _read_record(self, path: Path) -> StateRecord:
        record, _ = self._authenticated(path)
        if f"{record.id}.state" != path.name:
            raise BadStateFile("it is of another state")
        return record

    def _authenticated(self, path: Path) -> tuple[StateRecord, dict[str, Any]]:
        """Return the record of a file whose MAC is good."""
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            tail = _LENGTH_BYTES + MAC_BYTES
            if size < tail:
                raise BadStateFile("it is too short")
            closing = os.pread(file.fileno(), tail, size - tail)
            length = int.from_bytes(closing[:_LENGTH_BYTES], "big")
            if length > min(_RECORD_BYTES_MAX, size - tail):
                raise BadStateFile("its record is longer than the file")
            text = os.pread(file.fileno(), length, size - tail - length)
        if not hmac.compare_digest(self._mac(text + closing[:_LENGTH_BYTES]), closing[_LENGTH_BYTES:]):
            raise BadStateFile("its MAC is not of this node")
        try:
            record, fields = StateRecord.from_json(text, tier=Tier.DISK), json.loads(text)
        except (messages.BadMessage, ValueError, KeyError, TypeError) as error:
            raise BadStateFile("its record is of another version") from error
        if record.entry.size_bytes != size - tail - length:
            raise BadStateFile("it has another length")
        return record, fields

    def _closing(self, record: StateRecord, digest: str) -> bytes:
        text = record.to_json(digest=digest)
        authenticated = text + len(text).to_bytes(_LENGTH_BYTES, "big")
        return authenticated + self._mac(authenticated)

    def _mac(self, data: bytes) -> bytes:
        return hashlib.blake2b(data, key=self._key, digest_size=MAC_BYTES).digest()


def _chunks(descriptor: int, size_bytes: int) -> Iterator[bytes]:
    """Yield the first bytes of a file.

    Raises:
        OSError: there are fewer.
    """
    place = 0
    while place < size_bytes:
        chunk = os.pread(descriptor, min(_CHUNK_BYTES, size_bytes - place), place)
        if not chunk:
            raise OSError("the file ended early")
        place += len(chunk)
        yield chunk

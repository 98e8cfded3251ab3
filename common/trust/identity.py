"""Identity of this process: three files of a directory, read again when they change.

The files have the names that Kubernetes gives them in a Secret: `ca.crt`, `tls.crt`, `tls.key`.
"""

import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from common.paths import open_regular
from common.startup_error import StartupError
from common.telemetry.logs import get_logger
from common.telemetry.metrics import CERTIFICATE_EXPIRES, CERTIFICATE_LATE, CONFIG_GENERATION
from common.trust.certificates import BadCertificate, Facts, KeyPair, check_pair

AUTHORITIES, CERTIFICATE, KEY = "ca.crt", "tls.crt", "tls.key"
FILE_BYTES_MAX = 256 * 1024
# A new certificate is in use after so long. Every call asks for the newest one.
LOOK_S = 1.0

log = get_logger()

Stamps = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Material:
    """Everything that one TLS connection needs; `authorities` are those that a peer's certificate may come from."""

    facts: Facts
    authorities: bytes
    pair: KeyPair


class IdentitySource(Protocol):
    """Anything that has the newest certificate of this process."""

    def material(self) -> Material:
        """Return the certificate for connections that are opened from now on."""


class HeldIdentity:
    """Identity of a process that is given its certificates and reads no files: of a runner, by its host."""

    def __init__(self, authorities: bytes, pair: KeyPair) -> None:
        """As `replace`."""
        self.replace(authorities, pair)

    def replace(self, authorities: bytes, pair: KeyPair) -> None:
        """Use another certificate from now on.

        Raises:
            BadCertificate: it cannot be used.
        """
        self._material = Material(check_pair(pair, authorities, now_unix_s=time.time()), authorities, pair)

    def material(self) -> Material:
        """Return the newest certificate."""
        return self._material


class Identity:
    """Reads on any thread. Files that cannot be used are not taken: the last good ones stay in use."""

    def __init__(self, directory: Path, *, wall_unix_s: Callable[[], float] = time.time) -> None:
        """Read the files.

        Raises:
            StartupError: one is missing, readable by others, no certificate, expired, or of another cluster.
        """
        self._directory = directory.expanduser()
        self._wall_unix_s = wall_unix_s
        self._looked_at_s = time.monotonic()
        self._stamps = self._look()
        try:
            self._material = self._read()
        except (OSError, BadCertificate) as error:
            raise StartupError(f"PUNA_TRUST: {_text(error, self._directory)}") from error

    def material(self) -> Material:
        """Return the newest certificate that could be used."""
        now_s = time.monotonic()
        if now_s >= self._looked_at_s + LOOK_S:
            self._looked_at_s = now_s
            self._renew()
        return self._material

    def _renew(self) -> None:
        if (stamps := self._look()) == self._stamps:
            return
        self._stamps = stamps
        try:
            self._material = self._read()
            log.info("trust.renewed", name=str(self._material.facts.name))
        except (OSError, BadCertificate) as error:
            log.warning("trust.broken", text=_text(error, self._directory))

    def _look(self) -> Stamps:
        """Return what differs once a file was replaced; nothing while one is missing."""
        try:
            found = [(self._directory / name).stat() for name in (AUTHORITIES, CERTIFICATE, KEY)]
        except OSError:
            return ()
        return tuple((one.st_mtime_ns, one.st_size, one.st_ino) for one in found)

    def _read(self) -> Material:
        authorities = read_trusted(self._directory / AUTHORITIES)
        pair = KeyPair(read_trusted(self._directory / CERTIFICATE), read_trusted(self._directory / KEY, secret=True))
        material = Material(check_pair(pair, authorities, now_unix_s=self._wall_unix_s()), authorities, pair)
        CONFIG_GENERATION.labels(file="trust").inc()
        return material


def read_trusted(path: Path, *, secret: bool = False, flags: int = 0) -> bytes:
    """Read a file that only this user or root can have written, and where `secret`, only they and a group can read.

    The files of a read-only mount may belong to any user: root chose to mount them, and nothing here can change them.
    Links are followed unless `flags` says otherwise: Kubernetes mounts Secrets as links.

    Raises:
        OSError: it cannot be read.
        BadCertificate: others can change or read it, or it is too long.
    """
    with os.fdopen(open_regular(path, flags), "rb") as file:
        status = os.fstat(file.fileno())
        is_ours = status.st_uid in (os.geteuid(), 0) or os.fstatvfs(file.fileno()).f_flag & os.ST_RDONLY
        if not is_ours or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise BadCertificate(f"{path} can be changed by other users; chown it to this user and set mode 0600")
        if secret and status.st_mode & stat.S_IRWXO:
            raise BadCertificate(f"{path} can be read by other users; set mode 0600")
        content = file.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise BadCertificate(f"{path} has more than {FILE_BYTES_MAX} bytes")
    return content


def _text(error: OSError | BadCertificate, directory: Path) -> str:
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}; `puna trust issue` writes it"
    return f"{error}" if str(directory) in str(error) else f"{directory}: {error}"


_own: IdentitySource | None = None


def use_identity(identity: IdentitySource | None) -> None:
    """Set the identity that this process shows on TCP connections that are opened from now on; None: no TLS."""
    global _own  # noqa: PLW0603  # one process, one identity, as one configuration of logs
    _own = identity
    if identity is not None:
        CERTIFICATE_EXPIRES.set_function(lambda: identity.material().facts.valid_to_unix_s)
        CERTIFICATE_LATE.set_function(lambda: identity.material().facts.is_late(time.time()))


def own_identity() -> IdentitySource | None:
    """Return what `use_identity` was given."""
    return _own

"""The cluster's authority as files: it issues certificates into directories beside its own, and renews them.

DIRECTORY/ca/ca.crt, ca.key      the authorities that are accepted, newest first; the key of the newest
DIRECTORY/gateway, node/a, …     identities: each is what `PUNA_TRUST` of one process names
"""

import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from common.audit.acts import NO_ACT_LOG, Act, ActLog
from common.paths import PRIVATE_MODE, replace_file
from common.startup_error import StartupError
from common.trust.certificates import (
    LIFE_S,
    BadCertificate,
    Facts,
    KeyPair,
    by_fingerprint,
    certify,
    check_key,
    issue,
    make_authority,
    newest_of,
    read_facts,
)
from common.trust.identity import AUTHORITIES, CERTIFICATE, KEY, read_trusted
from common.trust.roles import RoleName, parse_role

_OWN = "ca"
_AUTHORITY_KEY = "ca.key"
_PRIVATE_DIRECTORY = 0o700
# A directory of another group, which may enter it, is for a process of that group: of another user.
_SHARED_MODE = 0o640
_ENTER_GROUP, _ENTER_ANY = stat.S_IXGRP, stat.S_IXGRP | stat.S_IXOTH
# After a rotation certificates of the authority before it are good until they are renewed.
_ACCEPTED_MAX = 2


class Authority:
    """Holds no state: every command reads the files."""

    def __init__(
        self, directory: Path, *, acts: ActLog = NO_ACT_LOG, wall_unix_s: Callable[[], float] = time.time
    ) -> None:
        """`directory` has all of it; `acts` gets a line before each change."""
        self.directory = directory.expanduser()
        self.acts = acts
        self._wall_unix_s = wall_unix_s

    @property
    def exists(self) -> bool:
        """True where the authority itself is, not only certificates of it."""
        return (self.directory / _OWN).is_dir()

    @property
    def replaced_at_unix_s(self) -> float:
        """Time at which the newest authority was made; 0 without one."""
        path = self.directory / _OWN / AUTHORITIES
        return path.stat().st_mtime if path.exists() else 0.0

    def create(self) -> None:
        """Make the first authority of a cluster.

        Raises:
            StartupError: there is one already, or it cannot be written.
        """
        if self.exists:
            raise StartupError(f"{self.directory} has an authority; `puna trust rotate` replaces it")
        made = make_authority(self._wall_unix_s())
        with self.acts.act(Act.TRUST_INIT, object=_fingerprint(made)):
            write_private(self.directory / _OWN, {_AUTHORITY_KEY: made.key, AUTHORITIES: made.certificate})

    def issue(self, name: RoleName, *, life_s: float = LIFE_S) -> Path:
        """Write a new certificate for the holder of a role; the directory that its `PUNA_TRUST` names.

        Raises:
            StartupError: there is no authority, or the files cannot be written.
        """
        return self._issue(name, life_s, Act.TRUST_ISSUE)

    def _issue(self, name: RoleName, life_s: float, act: Act) -> Path:
        with locked(self.directory):
            authority = self._read()
            pair = issue(authority, name, now_unix_s=self._wall_unix_s(), life_s=life_s)
            path = self._path(name)
            files = {AUTHORITIES: authority.certificate, KEY: pair.key, CERTIFICATE: pair.certificate}
            with self.acts.act(act, object=str(name), life_s=life_s):
                write_private(path, files)
        return path

    def certify(self, name: RoleName, key: ec.EllipticCurvePublicKey, *, life_s: float = LIFE_S) -> bytes:
        """Return a certificate for a key that was drawn on another machine. Write nothing: `locked` is the caller's.

        Raises:
            StartupError: there is no authority.
        """
        return certify(self._read(), key, name, now_unix_s=self._wall_unix_s(), life_s=life_s)

    def authorities(self) -> bytes:
        """Return the authorities that are accepted, newest first.

        Raises:
            StartupError: as `certify`.
        """
        return self._read().certificate

    def renew(self) -> list[RoleName]:
        """Issue every certificate again that is past half of its life, for as long as it was good; which ones.

        Raises:
            StartupError: as `issue`, or a certificate cannot be read.
        """
        now_unix_s = self._wall_unix_s()
        due = [facts for facts in self.issued() if now_unix_s >= facts.renew_at_unix_s]
        for facts in due:
            self._issue(facts.name, facts.life_s, Act.TRUST_RENEW)
        return [facts.name for facts in due]

    def rotate(self) -> None:
        """Make another authority. Holders of certificates of the present one are accepted until the next rotation.

        Every identity learns of both at once, and gets a certificate of the new one when it is renewed.

        Raises:
            StartupError: as `issue`.
        """
        made = make_authority(self._wall_unix_s())
        with locked(self.directory):
            accepted = newest_of(made.certificate + self._read().certificate, _ACCEPTED_MAX)
            with self.acts.act(Act.TRUST_ROTATE, object=_fingerprint(made)):
                for facts in self.issued():
                    write_private(self._path(facts.name), {AUTHORITIES: accepted})
                write_private(self.directory / _OWN, {_AUTHORITY_KEY: made.key, AUTHORITIES: accepted})

    def issued(self) -> list[Facts]:
        """List the certificates that were issued into this directory.

        Raises:
            StartupError: one of them cannot be read.
        """
        return [self._facts(name) for name in sorted(self._names(), key=str)]

    def _names(self) -> Iterator[RoleName]:
        for path in self.directory.glob(f"**/{CERTIFICATE}"):
            try:
                yield parse_role(path.parent.relative_to(self.directory).as_posix())
            except ValueError:  # not one of ours
                continue

    def _facts(self, name: RoleName) -> Facts:
        path = self._path(name) / CERTIFICATE
        try:
            return read_facts(read_trusted(path))
        except OSError as error:
            raise StartupError(f"{path}: {error.strerror}") from error
        except BadCertificate as error:
            raise StartupError(f"{path}: {error}") from error

    def _path(self, name: RoleName) -> Path:
        return self.directory / str(name)

    def _read(self) -> KeyPair:
        own = self.directory / _OWN
        try:
            key = read_trusted(own / _AUTHORITY_KEY, secret=True, flags=os.O_NOFOLLOW)
            pair = KeyPair(read_trusted(own / AUTHORITIES, flags=os.O_NOFOLLOW), key)
            check_key(pair)
            return pair
        except FileNotFoundError as error:
            text = f"there is no authority in {self.directory}; `puna trust init` makes one"
            if self.exists:
                text = f"{error.filename} is gone; bring it back, or remove {own} and let every machine join again"
            raise StartupError(text) from error
        except OSError as error:
            raise StartupError(f"{error.filename}: {error.strerror}") from error
        except BadCertificate as error:
            raise StartupError(f"{own}: {error}") from error


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Change an authority's files: other processes wait, and none reads a key beside the certificate of another.

    Raises:
        StartupError: there is no directory.
    """
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise StartupError(f"there is no authority in {directory}; `puna trust init` makes one") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _fingerprint(made: KeyPair) -> str:
    return next(iter(by_fingerprint(made.certificate)))


def write_private(directory: Path, files: dict[str, bytes]) -> None:
    """Replace files in a directory that only this user can read, or also the group that the directory was made for.

    Raises:
        StartupError: they cannot be written.
    """
    try:
        directory.mkdir(mode=_PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        status = directory.stat()
        is_shared = status.st_gid != os.getegid() and status.st_mode & _ENTER_ANY == _ENTER_GROUP
        mode, group = (_SHARED_MODE, status.st_gid) if is_shared else (PRIVATE_MODE, None)
        for name, content in files.items():
            replace_file(directory / name, content, mode=mode, group=group)
    except OSError as error:
        raise StartupError(f"{error.filename or directory}: {error.strerror}") from error

"""The directory of a one-machine cluster, and the path under which its sockets are dialled."""

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from common.startup_error import StartupError

PRIVATE_MODE = 0o700
# sockaddr_un holds 107 bytes and a zero. The longest name is a runner's, in the host's own directory.
SOCKET_PATH_BYTES_MAX = 107
SOCKET_NAME_BYTES_MAX = 60
# In other paths gRPC and Redis would read some characters of a socket's URL as an escape or a query.
_PLAIN_PATH = re.compile(r"[A-Za-z0-9/._+-]+")
_ALIAS_NAME = "home"


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """`real` is what people see. `path` is what the services get: the same directory, by a name short enough."""

    real: Path
    path: Path

    @property
    def run(self) -> Path:
        """Sockets and state of what runs now."""
        return self.path / "run"

    @property
    def logs(self) -> Path:
        """One file per service, earlier runs numbered."""
        return self.real / "logs"

    @property
    def models(self) -> Path:
        """GGUF files."""
        return self.real / "models"

    @property
    def redis(self) -> Path:
        """The embedded Redis' append-only file."""
        return self.real / "redis"

    def socket(self, name: str) -> Path:
        """Return the path of the socket that a service listens on."""
        return self.run / f"{name}.sock"


def real_home(home: Path) -> Path:
    """Return the canonical path of a home directory."""
    return home.expanduser().resolve()


def prepare_home(home: Path) -> Home:
    """Create the directories, private to this user.

    Raises:
        StartupError: they cannot be created or belong to another user.
    """
    real = real_home(home)
    try:
        real.mkdir(mode=PRIVATE_MODE, parents=True, exist_ok=True)
        for name in ("run", "logs", "redis"):
            (real / name).mkdir(mode=PRIVATE_MODE, exist_ok=True)
        (real / "models").mkdir(exist_ok=True)
        # Access to the sockets is control of the cluster.
        (real / "run").chmod(PRIVATE_MODE)
    except OSError as error:
        raise StartupError(f"cannot use {real} as home: {error.strerror}") from error
    return Home(real=real, path=real)


def with_short_path(home: Home) -> Home:
    """Return the home under a path that is short enough for socket addresses; the caller holds the home's lock.

    A long or unusual path gets a symbolic link in a private temporary directory, recorded in the home so that the next
    start finds it again: runners that survived a crash are reached under it.
    """
    if _fits(home.real):
        return home
    record = _record(home.real)
    known = Path(record.read_text()) if record.exists() else None
    if known is None or not _is_our_alias(known, home.real):
        known = _make_alias(home.real)
        record.write_text(str(known))
    return Home(real=home.real, path=known)


def remove_short_path(home: Home) -> None:
    """Remove the link of `with_short_path`, if there is one."""
    record = _record(home.real)
    if record.exists():
        alias = Path(record.read_text())
        if _is_our_alias(alias, home.real):
            shutil.rmtree(alias.parent, ignore_errors=True)
        record.unlink()


def sockets(home: Home) -> Iterator[Path]:
    """Every socket file of the home."""
    for directory in (home.real / "run", home.real / "runners"):  # the second is the host's, for its runners
        for path in directory.glob("*"):
            if path.is_socket():
                yield path


def _record(real: Path) -> Path:
    return real / "run" / "short_path"


def _fits(path: Path) -> bool:
    longest = len(os.fsencode(path / "run")) + 1 + SOCKET_NAME_BYTES_MAX
    return longest <= SOCKET_PATH_BYTES_MAX and _PLAIN_PATH.fullmatch(str(path)) is not None


def _is_our_alias(alias: Path, real: Path) -> bool:
    """Return True if no other user can have made or changed the link."""
    try:
        parent = alias.parent.lstat()
        return (
            stat.S_ISDIR(parent.st_mode)
            and parent.st_uid == os.getuid()
            and stat.S_IMODE(parent.st_mode) == PRIVATE_MODE
            and alias.readlink() == real
        )
    except OSError:
        return False


def _make_alias(real: Path) -> Path:
    """Make a short alias of the home; raise StartupError if no temporary directory has a short path."""
    for directory in dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp")):  # noqa: S108  # mkdtemp makes it private
        try:
            alias = Path(tempfile.mkdtemp(prefix="puna-", dir=directory)) / _ALIAS_NAME
        except OSError:
            continue
        if _fits(alias):
            alias.symlink_to(real, target_is_directory=True)
            return alias
        alias.parent.rmdir()
    raise StartupError(f"the path {real} is too long for sockets, and no temporary directory has a short one")

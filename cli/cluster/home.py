"""The directory of a one-machine cluster: its paths, the lock of its supervisor, and run/puna.json.

Sockets are dialled under a path of their own. The file says what runs here and where, for other commands and the next
start.
"""

import asyncio
import fcntl
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from cli.core.server_address import connect_url
from cli.settings import acts_in
from common.audit.acts import ActLog
from common.paths import replace_file
from common.startup_error import StartupError

_NAME = "puna.json"
PRIVATE_MODE = 0o700
# sockaddr_un holds 107 bytes and a zero. The longest name is a runner's, in the host's own directory.
SOCKET_PATH_BYTES_MAX = 107
SOCKET_NAME_BYTES_MAX = 60
# In other paths gRPC and Redis would read some characters of a socket's URL as an escape or a query.
_PLAIN_PATH = re.compile(r"[A-Za-z0-9/._+-]+")
_ALIAS_NAME = "home"
_WRITE_AGAIN_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """`real` is what people see. `path` is what the services get: the same directory, by a name short enough."""

    real: Path
    path: Path

    @property
    def acts(self) -> ActLog:
        """Log of the administrative acts on this machine."""
        return acts_in(self.real)

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
        for path in directory.rglob("*"):
            if path.is_socket():
                yield path


def set_aside_files(real: Path) -> list[Path]:
    """Files that a host could not read and renamed."""
    return sorted([*real.glob("*.corrupt-*"), *(real / "runners").glob("*.corrupt-*")])


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


class HomeInUse(Exception):
    """Another supervisor has the home."""


@contextmanager
def home_lock(home: Path) -> Iterator[None]:
    """Hold the home for as long as the block runs; the kernel releases it when the process dies, however it dies.

    Raises:
        HomeInUse: another process holds it.
    """
    with (home / "run" / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise HomeInUse from error
        yield


def is_locked(home: Path) -> bool:
    """Return True while a supervisor has the home."""
    if not (home / "run" / "lock").exists():
        return False
    try:
        with home_lock(home):
            return False
    except HomeInUse:
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRecord:
    """One supervised process. `pid` is None while it waits to be started again."""

    state: str
    pid: int | None
    # Start time of the process in clock ticks since boot: with the pid it names one process for ever.
    start_ticks: int | None
    restarts: int
    metrics_address: str | None
    log: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRecord:
    """A supervisor and its services."""

    pid: int
    start_ticks: int
    version: str
    started_at_unix_s: float
    http_address: str
    grpc_address: str
    discovery_address: str
    scheduler_address: str
    redis_url: str
    home: str
    run: str
    ready: bool = False
    tls: bool = False  # the gateway serves HTTPS
    services: dict[str, ServiceRecord] = field(default_factory=dict)

    @property
    def http_url(self) -> str:
        """The URL for HTTP clients."""
        return connect_url(self.http_address, tls=self.tls)


def write_record(home: Path, record: ClusterRecord) -> None:
    """Replace the file in one step: a reader sees the old or the new one."""
    replace_file(home / "run" / _NAME, json.dumps(asdict(record), indent=1).encode())


class StateFile:
    """run/puna.json, as new as the disk allows: one that is full keeps no service from being started again."""

    def __init__(self, home: Path, current: Callable[[], ClusterRecord], warn: Callable[[str], None]) -> None:
        """Nothing is written yet; `warn` gets a line when writing begins to fail, and one when it works again."""
        self._home = home
        self._current = current
        self._warn = warn
        self._is_behind = False

    def write(self) -> None:
        """Write the state of now, or leave that to `keep_written`."""
        was_behind = self._is_behind
        try:
            write_record(self._home, self._current())
            self._is_behind = False
        except OSError as error:
            self._is_behind = True
            if not was_behind:
                self._warn(f"{self._home / 'run' / _NAME} is out of date and is written later: {error.strerror}")
        if was_behind and not self._is_behind:
            self._warn(f"{self._home / 'run' / _NAME} is up to date again")

    async def keep_written(self) -> None:
        """Repeat what failed; runs for ever."""
        while True:
            await asyncio.sleep(_WRITE_AGAIN_S)
            if self._is_behind:
                self.write()


def read_record(home: Path) -> ClusterRecord | None:
    """Read the record; None if there is none, or none that this version can read."""
    try:
        fields = json.loads((home / "run" / _NAME).read_text())
        services = {name: ServiceRecord(**record) for name, record in fields.pop("services").items()}
        return ClusterRecord(**fields, services=services)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def remove_record(home: Path) -> None:
    """Remove the file: nothing runs."""
    (home / "run" / _NAME).unlink(missing_ok=True)

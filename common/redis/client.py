"""Opens Redis by its URL: one server, or the primary that sentinels name. Checks the server of each connection."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

from common.network import split_host_port
from common.redis.versions import is_vulnerable, server_version
from common.telemetry.logs import get_logger

log = get_logger()

Result = TypeVar("Result")

SENTINEL_SCHEMES: Mapping[str, bool] = {"redis+sentinel": False, "rediss+sentinel": True}  # and whether they use TLS
SENTINEL_PORT = 26379
UNREACHED = (RedisError, OSError, TimeoutError, RuntimeError)  # the last: uvloop's, if a reset has just closed it


class VulnerableServerError(RedisError):
    """The server's version lets its clients run code in it. The caller's move: use another one."""


@dataclass(slots=True)
class ServerCheck:
    """Check of the connections of one client; each server may be another one than that before."""

    refuses: bool  # a vulnerable server is not used; else it is a warning
    _logged: set[str] = field(default_factory=set)  # each text once

    async def connected(self, connection: Any) -> None:
        """Set up a new connection, and ask for the server's version; one that does not permit it is used.

        Raises:
            VulnerableServerError: the connection is not to be used.
        """
        await connection.on_connect()
        await connection.send_command("INFO", "server", check_health=False)
        try:
            answer = str(await connection.read_response())
        except ResponseError as error:  # rules of an earlier build; a service that has no such command
            self._warn("redis.not_checked", str(error))
            return
        info = dict(line.split(":", 1) for line in answer.splitlines() if ":" in line)
        if not is_vulnerable(info):
            return
        text = f"{server_version(info)} lets its clients run code in it (CVE-2025-49844)"
        self._warn("redis.vulnerable", text)
        if self.refuses:
            raise VulnerableServerError(
                f"{text}; install a patched one, "
                "or set PUNA_REDIS_ANY_VERSION=1 if its provider has mended it without a new version"
            )

    def _warn(self, event: str, text: str) -> None:
        if text not in self._logged:
            self._logged.add(text)
            log.warning(event, text=text, used=event == "redis.not_checked" or not self.refuses)


def check_of(url: str, *, any_version: bool) -> ServerCheck:
    """Return the check for a URL: only processes of this machine reach a Unix socket."""
    return ServerCheck(refuses=not (url.startswith("unix:") or any_version))


def open_redis(url: str, *, timeout_s: float, connections_max: int, check: ServerCheck | None = None) -> Redis:
    """Return a client that connects at its first command, returns text, and does not retry.

    `redis://host:6379/0`, `rediss://` with TLS and `unix:///path` name a server.
    `redis+sentinel://[user:password@]host:26379,host:26379/name/0` names sentinels and the set that they watch: every
    new connection goes to the server that is primary then; user and password are those of the servers.
    Parameters: `?ssl_ca_certs=FILE` names the authority of its certificate, `password_file=FILE` has the password of
    the user in the URL, and is read for each connection. `timeout_s` is for connecting and for each command. `check`
    judges the server of each connection, but no sentinel.

    Raises:
        ValueError: not such a URL.
    """
    options: dict[str, Any] = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "redis_connect_func": check.connected if check is not None else None,
    }
    parts = urlsplit(url)
    asked = dict(parse_qsl(parts.query))
    if path := asked.pop("password_file", ""):
        user, _, hosts = parts.netloc.rpartition("@")
        options["credential_provider"] = _PasswordFile(unquote(user), Path(path))
        parts = parts._replace(netloc=hosts, query=urlencode(asked))
        url = parts.geturl() if hosts else f"{parts.scheme}://{parts.path}?{parts.query}"
    if parts.scheme in SENTINEL_SCHEMES:
        return _open_set(url, options, connections_max, authorities=asked.get("ssl_ca_certs"))
    pool: Any = BlockingConnectionPool.from_url(
        url, timeout=timeout_s, max_connections=connections_max, decode_responses=True, **options
    )
    return Redis.from_pool(pool)


async def answer_within(command: Callable[[], Awaitable[Result]], timeout_s: float) -> Result:
    """Return the answer to a command.

    The client writes within `asyncio.wait_for`, which before Python 3.12 loses a cancellation that comes just when the
    command has been written; a task that asks in a loop would then run on. So it is raised afterwards.

    Raises:
        TimeoutError: there is none in time.
        RedisError, OSError: it failed.
    """
    task = asyncio.current_task()
    assert task is not None
    async with asyncio.timeout(timeout_s):
        cancellations = task.cancelling()
        answer = await command()
        if task.cancelling() > cancellations:
            raise asyncio.CancelledError
    return answer


@dataclass(frozen=True, slots=True)
class _PasswordFile(CredentialProvider):
    user: str
    path: Path

    def get_credentials(self) -> tuple[str, str]:
        """Read the file: a new password needs no restart."""
        try:
            return self.user, self.path.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise RedisConnectionError(f"password_file {self.path}: {error.strerror}") from error

    async def get_credentials_async(self) -> tuple[str, str]:
        """As `get_credentials`."""
        return self.get_credentials()


class _Primary(Redis):
    """The primary of a set; closes the connections to its sentinels, too."""

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        await super().aclose(close_connection_pool)
        pool: Any = self.connection_pool  # made by Sentinel.master_for: a pool that knows its sentinels
        for sentinel in pool.sentinel_manager.sentinels:
            await sentinel.aclose()


def _open_set(url: str, options: Mapping[str, Any], connections_max: int, *, authorities: str | None) -> Redis:
    parts = urlsplit(url)
    credentials, _, hosts = parts.netloc.rpartition("@")
    name, _, database = parts.path.strip("/").partition("/")
    if not hosts or not name or not (database or "0").isdecimal():
        raise ValueError(f"{url!r} is not {parts.scheme}://host:port,host:port/name/0")
    user, _, password = credentials.partition(":")
    secrets = {"username": unquote(user) or None, "password": unquote(password) or None} if credentials else {}
    tls = {"ssl": True, "ssl_ca_certs": authorities} if SENTINEL_SCHEMES[parts.scheme] else {}
    make_sentinel: Any = Sentinel  # its constructor is not typed
    sentinels = make_sentinel(
        [split_host_port(host if ":" in host else f"{host}:{SENTINEL_PORT}") for host in hosts.split(",")],
        sentinel_kwargs={
            **options,
            **tls,
            "decode_responses": True,
            "credential_provider": None,
            "redis_connect_func": None,
        },
        **options,
        **secrets,
        **tls,
        decode_responses=True,
        max_connections=connections_max,
    )
    client: Redis = sentinels.master_for(name, redis_class=_Primary, db=int(database or "0"))
    return client

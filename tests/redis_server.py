"""A real redis-server of a test's own on a Unix socket, which can be killed and started again, empty or not."""

import asyncio
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from cli.cluster.plan import embedded_redis_server
from common.redis.users import PASSWORD, USERS, write_users
from common.trust.roles import Role
from tests.ports import free_port
from tests.waiting import Stopwatch, next_look

_START_S_MAX = 30.0


def write_test_users(directory: Path) -> None:
    """Write the rules of a deployment, but for the default user, who may do everything here."""
    users = write_users(directory)
    shipped = users.read_text().splitlines()[1:]
    users.write_text("\n".join(["user default on nopass ~* &* +@all", *shipped, ""]))


class RedisServer:
    """Keeps nothing on disk: started again, it is empty. It has the users of a deployment, and a default one that may
    do everything."""

    def __init__(self, directory: Path) -> None:
        self._socket = directory / "redis.sock"
        self._directory = directory
        self._process: asyncio.subprocess.Process | None = None
        self.url = f"unix://{self._socket}"
        write_test_users(directory)

    def url_of(self, role: Role) -> str:
        """The same as the user of a role."""
        return f"unix://{role}@{self._socket}?password_file={self._directory / role / PASSWORD}"

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            embedded_redis_server(),
            *("--port", "0", "--unixsocket", str(self._socket), "--dir", str(self._directory)),
            *("--save", "", "--appendonly", "no", "--aclfile", str(self._directory / USERS)),
            stdout=asyncio.subprocess.DEVNULL,
        )
        watch = Stopwatch()
        async with self.client() as client:
            while True:
                try:
                    await client.ping()
                except (RedisError, OSError):
                    assert not watch.is_past(_START_S_MAX), "redis-server does not start"
                    await next_look()
                else:
                    return

    async def kill(self) -> None:
        """As a crash would."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        self._socket.unlink(missing_ok=True)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Any]:
        client: Any = Redis.from_url(self.url, decode_responses=True)
        try:
            yield client
        finally:
            await client.aclose()


@asynccontextmanager
async def redis_server() -> AsyncIterator[RedisServer]:
    """A running one; its directory has a path short enough for a socket's name."""
    directory = Path(tempfile.mkdtemp(prefix="puna-r-"))
    server = RedisServer(directory)
    try:
        await server.start()
        yield server
    finally:
        await server.kill()
        shutil.rmtree(directory)


class OlderServer:
    """The real server at another address; while `is_older`, it names a version that lacks a patch."""

    def __init__(self, redis: RedisServer, url: str) -> None:
        self.url = url
        self.is_older = True
        self._redis = redis
        self._writers: set[asyncio.StreamWriter] = set()

    def drop_connections(self) -> None:
        """As a failover does: the next connection may reach another server."""
        for writer in self._writers:
            writer.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, commands = await asyncio.open_unix_connection(self._redis.url.removeprefix("unix://"))
        self._writers.add(writer)
        await asyncio.gather(self._copy(reader, commands), self._copy(answers, writer), return_exceptions=True)
        self._writers.discard(writer)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while part := await reader.read(1 << 16):
                named = b"valkey_version:8.1.3" if self.is_older else rb"\g<0>"
                writer.write(re.sub(rb"valkey_version:\d\.\d\.\d", named, part))
        finally:
            writer.close()


@asynccontextmanager
async def older(redis: RedisServer, *, socket: Path | None = None) -> AsyncIterator[OlderServer]:
    """Run one over TCP, or on a Unix socket."""
    if socket is not None:
        older_server = OlderServer(redis, f"unix://{socket}")
        listener: asyncio.Server = await asyncio.start_unix_server(older_server.serve, socket)
    else:
        port = free_port()
        older_server = OlderServer(redis, f"redis://127.0.0.1:{port}")
        listener = await asyncio.start_server(older_server.serve, "127.0.0.1", port)
    async with listener:
        yield older_server
        older_server.drop_connections()

"""A real redis-server of a test's own on a Unix socket, which can be killed and started again, empty or not."""

import asyncio
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

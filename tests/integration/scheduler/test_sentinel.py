"""Redis with sentinels, all real: the primary dies, and what the scheduler keeps goes on at a replica."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from cli.cluster.plan import embedded_redis_server
from common.clock import SystemClock
from common.errors import StartupError
from common.redis import client as redis_client
from common.redis.client import VulnerableServerError, open_redis
from common.redis.users import PASSWORD, SERVERS, USERS
from common.trust.roles import Role
from scheduler.core.state.effects import SaveConstraints
from scheduler.core.values.constraints import Constraints
from scheduler.redis_store import RedisStore, StoreUnavailableError
from tests.ports import free_port
from tests.redis_server import write_test_users
from tests.waiting import Stopwatch, next_look

SET = "puna"
START_S_MAX = 60.0
# What an operator is promised: half a minute is long, so the test is stricter than the seconds of `down-after`.
FAILOVER_S_MAX = 15.0


class Watched:
    """A primary, two replicas and three sentinels on loopback."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.servers = [free_port() for _ in range(3)]
        self.sentinels = [free_port() for _ in range(3)]
        self._of_the_set: tuple[str, ...] = ()
        self._processes: dict[int, asyncio.subprocess.Process] = {}

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.sentinels)
        file = self._directory / Role.SCHEDULER / PASSWORD
        return f"redis+sentinel://{Role.SCHEDULER}@{hosts}/{SET}/0?password_file={file}"

    async def start(self) -> None:
        primary = self.servers[0]
        write_test_users(self._directory)
        password = (self._directory / SERVERS / PASSWORD).read_text()
        self._of_the_set = ("--masteruser", SERVERS, "--masterauth", password)
        await self._start(primary)
        for port in self.servers[1:]:
            await self._start(port, "--replicaof", "127.0.0.1", str(primary))
        for port in self.sentinels:
            home = self._directory / str(port)
            home.mkdir()
            settings = home / "sentinel.conf"
            settings.write_text(
                f"port {port}\ndir {home}\nsentinel monitor {SET} 127.0.0.1 {primary} 2\n"
                f"sentinel auth-user {SET} {SERVERS}\nsentinel auth-pass {SET} {password}\n"
                f"sentinel down-after-milliseconds {SET} 2000\nsentinel failover-timeout {SET} 6000\n"
            )
            await self._run(port, str(settings), "--sentinel")
        await self._until_all_know_each_other()

    async def kill(self, port: int) -> None:
        process = self._processes[port]
        process.kill()
        await process.wait()

    async def primary(self) -> int:
        """The port of who is primary, as the first sentinel says."""
        async with _client(self.sentinels[0]) as client:
            return int((await client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SET))[1])

    async def close(self) -> None:
        for process in self._processes.values():
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def _start(self, port: int, *arguments: str) -> None:
        home = self._directory / str(port)
        home.mkdir()
        await self._run(
            port,
            *("--port", str(port), "--dir", str(home), "--save", "", "--repl-diskless-sync-delay", "0"),
            *("--aclfile", str(self._directory / USERS), *self._of_the_set, *arguments),
        )

    async def _run(self, port: int, *arguments: str) -> None:
        self._processes[port] = await asyncio.create_subprocess_exec(
            embedded_redis_server(), *arguments, stdout=asyncio.subprocess.DEVNULL
        )
        await _until_answers(port)

    async def _until_all_know_each_other(self) -> None:
        watch = Stopwatch()
        for port in self.sentinels:
            async with _client(port) as client:
                while True:
                    fields = _pairs(await client.execute_command("SENTINEL", "MASTER", SET))
                    if fields["num-other-sentinels"] == "2" and fields["num-slaves"] == "2":
                        break
                    assert not watch.is_past(START_S_MAX), f"a sentinel still sees {fields}"
                    await next_look()


@asynccontextmanager
async def _client(port: int) -> AsyncIterator[Any]:
    client: Any = Redis(host="127.0.0.1", port=port, decode_responses=True)
    try:
        yield client
    finally:
        await client.aclose()


async def _until_answers(port: int) -> None:
    watch = Stopwatch()
    async with _client(port) as client:
        while True:
            try:
                await client.ping()
            except (RedisError, OSError):
                assert not watch.is_past(START_S_MAX), "redis-server does not start"
                await next_look()
            else:
                return


def _pairs(answer: object) -> dict[str, str]:
    if isinstance(answer, dict):
        return {str(key): str(value) for key, value in answer.items()}
    assert isinstance(answer, list)
    return dict(zip(answer[::2], answer[1::2], strict=True))


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    directory = Path(tempfile.mkdtemp(prefix="puna-s-"))
    running = Watched(directory)
    try:
        await running.start()
        yield running
    finally:
        await running.close()
        shutil.rmtree(directory)


async def test_the_scheduler_leads_on_after_the_primary_died_with_what_was_written(watched: Watched) -> None:
    store = RedisStore(watched.url, SystemClock())
    try:
        before = await store.acquire("one", high_water=0)
        assert before.is_mine
        await store.write(
            SaveConstraints(
                fence=before.fence, caller_id="", model_name="demo:latest", constraints=Constraints(pinned=True)
            )
        )
        await _until_copied(watched)
        old = await watched.primary()
        await watched.kill(old)
        after = await _acquire(store)
        assert after.is_mine
        assert after.fence >= before.fence
        assert (await store.load_constraints())["demo:latest"].pinned
        assert await watched.primary() != old
    finally:
        await store.close()


async def test_a_server_with_a_known_hole_is_refused_when_it_becomes_primary(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    patched = str(watched.servers[0])
    monkeypatch.setattr(redis_client, "is_vulnerable", lambda info: info["tcp_port"].strip() != patched)
    store = RedisStore(watched.url, SystemClock())
    try:
        assert (await store.acquire("one", high_water=0)).is_mine
        await watched.kill(watched.servers[0])
        watch = Stopwatch()
        while True:
            with pytest.raises(StoreUnavailableError) as refused:
                await store.acquire("one", high_water=0)
            if isinstance(refused.value.__cause__, VulnerableServerError):
                break
            assert not watch.is_past(FAILOVER_S_MAX), "no other server was asked"
            await next_look()
    finally:
        await store.close()


async def _acquire(store: RedisStore) -> Any:
    watch = Stopwatch()
    while True:
        try:
            return await store.acquire("one", high_water=0)
        except StoreUnavailableError:
            assert not watch.is_past(FAILOVER_S_MAX), f"nobody is primary after {FAILOVER_S_MAX} s"
            await next_look()


async def _until_copied(watched: Watched) -> None:
    async with _client(await watched.primary()) as client:
        assert await client.wait(2, 60_000) == 2


@pytest.mark.parametrize(
    "url", ["redis+sentinel://", "redis+sentinel://a:1", "redis+sentinel://a:1/puna/x", "http://a"]
)
def test_what_is_no_url_of_a_redis_stops_the_start(url: str) -> None:
    with pytest.raises(StartupError, match="PUNA_REDIS_URL"):
        RedisStore(url, SystemClock())


async def test_user_and_password_are_those_of_the_servers() -> None:
    client = open_redis("redis+sentinel://ada:p%40ss@a,b:2/set/3", timeout_s=1.0, connections_max=2)
    try:
        options = client.connection_pool.connection_kwargs
        assert (options["username"], options["password"], options["db"]) == ("ada", "p@ss", 3)
    finally:
        await client.aclose()

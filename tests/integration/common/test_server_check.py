"""Redis servers with a known hole: the clients of both services check each connection that they make."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from common.clock import SystemClock
from common.redis.client import VulnerableServerError
from common.trust.roles import Role
from gateway.keys.key_redis import KeyRedis, KeyStoreUnavailableError
from scheduler.redis_store import RedisStore, StoreUnavailableError
from tests.redis_server import RedisServer, older, redis_server
from tests.waiting import next_look

Ask = Callable[[], Awaitable[object]]
Open = Callable[..., AbstractAsyncContextManager[Ask]]


@asynccontextmanager
async def of_scheduler(url: str, *, any_version: bool = False) -> AsyncIterator[Ask]:
    store = RedisStore(url, SystemClock(), any_version=any_version)
    try:
        yield store.load_aliases
    finally:
        await store.close()


@asynccontextmanager
async def of_gateway(url: str, *, any_version: bool = False) -> AsyncIterator[Ask]:
    keys = KeyRedis(url, any_version=any_version)
    try:
        yield lambda: keys.look("", "gateway", {})
    finally:
        await keys.close()


CLIENTS = pytest.mark.parametrize("client", [of_scheduler, of_gateway])


@pytest.fixture
async def redis() -> AsyncIterator[RedisServer]:
    async with redis_server() as running:
        yield running


async def is_used(ask: Ask) -> bool:
    """Return True if there is an answer, and False once the server is refused."""
    async with asyncio.timeout(30):
        while True:
            try:
                await ask()
            except (StoreUnavailableError, KeyStoreUnavailableError) as error:
                if isinstance(error.__cause__, VulnerableServerError):
                    return False
                await next_look()
            else:
                return True


@CLIENTS
async def test_an_older_server_that_comes_later_is_refused_until_a_patched_one_comes(
    client: Open, redis: RedisServer
) -> None:
    async with older(redis) as server, client(server.url) as ask:
        server.is_older = False
        assert await is_used(ask)
        server.is_older = True
        server.drop_connections()
        with capture_logs() as logs:
            assert [await is_used(ask) for _ in range(2)] == [False, False]
        server.is_older = False
        server.drop_connections()
        async with asyncio.timeout(30):
            while not await is_used(ask):
                await next_look()
    assert [(line["text"], line["used"]) for line in logs if line["event"] == "redis.vulnerable"] == [
        ("Valkey 8.1.3 lets its clients run code in it (CVE-2025-49844)", False)
    ]


@CLIENTS
@pytest.mark.parametrize("any_version", [False, True], ids=["on a Unix socket", "with PUNA_REDIS_ANY_VERSION"])
async def test_an_older_server_that_is_accepted_is_a_warning(
    client: Open, any_version: bool, redis: RedisServer, tmp_path: Path
) -> None:
    with capture_logs() as logs:
        async with (
            older(redis, socket=None if any_version else tmp_path / "r") as server,
            client(server.url, any_version=any_version) as ask,
        ):
            assert await is_used(ask)
            server.drop_connections()
            assert await is_used(ask)
    assert [line["used"] for line in logs if line["event"] == "redis.vulnerable"] == [True]


@pytest.mark.parametrize(("client", "role"), [(of_scheduler, Role.SCHEDULER), (of_gateway, Role.GATEWAY)])
async def test_a_user_that_may_not_ask_for_the_version_is_warned_of_once(
    client: Open, role: Role, redis: RedisServer
) -> None:
    async with redis.client() as default, client(redis.url_of(role)) as ask:
        await default.execute_command("ACL", "SETUSER", str(role), "-info")
        with capture_logs() as logs:
            for _ in range(2):
                assert await is_used(ask)
                await default.execute_command("CLIENT", "KILL", "USER", str(role))
    said = [line["text"] for line in logs if line["event"] == "redis.not_checked"]
    assert len(said) == 1
    assert "permissions" in said[0]

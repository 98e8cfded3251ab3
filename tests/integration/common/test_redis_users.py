"""Users of Redis on a real server: the roles' own code passes, and nothing else does."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, RedisError

from common.clock import SystemClock
from common.redis.client import open_redis
from common.redis.users import PASSWORD, RULES, USERS, write_users
from common.trust.roles import Role
from gateway.keys.key_redis import KeyRedis, KeyStoreUnavailableError, SharedBucket
from gateway.keys.key_scripts import SHARES
from scheduler.core.state.effects import RemoveDesired, SaveDesired
from scheduler.redis_store import RedisStore
from tests.certificates import write_certificate
from tests.integration.scheduler.test_redis_store import RECORD
from tests.redis_server import RedisServer, redis_server


async def use_as_scheduler(url: str) -> None:
    store = RedisStore(url, SystemClock())
    try:
        await store.connect()
        lease = await store.acquire("one", high_water=0)
        await store.acquire("one", high_water=0)
        await store.write(SaveDesired(fence=lease.fence, record=RECORD))
        await store.write(RemoveDesired(fence=lease.fence, placement_id=RECORD.placement_id))
        await store.load()
        await store.release("one")
    finally:
        await store.close()


async def use_as_gateway(url: str) -> None:
    keys = KeyRedis(url)
    try:
        await keys.look("", "gateway", {"k": 1})
        assert await keys.add({"k": "{}"}, {"r": "{}"})
        await keys.look("", "gateway", {})
        await keys.last_used()
        bucket = SharedBucket(name="tokens", limit=10, period_s=60.0, amount=1)
        await keys.take("k", "request", 2, [bucket])
        await keys.renew("k", ["request"])
        await keys.settle("k", "request", 3, [bucket])
        assert await keys.exchange_shares("gateway", "[]") == {}
        client = open_redis(url, timeout_s=5.0, connections_max=1)
        await client.hset(SHARES, "silent", "1 []")
        await client.aclose()
        assert await keys.exchange_shares("another", "[1]") == {"gateway": "[]"}
        assert await keys.exchange_shares("gateway", "[]") == {"another": "[1]"}
    finally:
        await keys.close()


@pytest.fixture
async def server() -> AsyncIterator[RedisServer]:
    async with redis_server() as running:
        yield running


@pytest.mark.parametrize(("role", "use"), [(Role.SCHEDULER, use_as_scheduler), (Role.GATEWAY, use_as_gateway)])
async def test_a_role_may_run_the_commands_of_its_code_and_no_others(
    server: RedisServer, role: Role, use: Callable[[str], Awaitable[None]]
) -> None:
    async with server.client() as client:
        await client.config_resetstat()
        await use(server.url_of(role))
        counted = await client.info("commandstats")
        refused = [entry["object"] for entry in await client.acl_log()]
    ran = {name.removeprefix("cmdstat_") for name in counted} - {
        "auth",
        "client|setinfo",
        "config|resetstat",
        "hello",
        "ping",
    }
    assert {command.replace("info", "info|server") for command in ran} == set(RULES[role][0].split())
    assert refused == []


async def test_rules_of_an_earlier_build_refuse_shares_and_leave_keys_and_quotas(server: RedisServer) -> None:
    async with server.client() as client:
        await client.execute_command("ACL", "SETUSER", "gateway", "resetkeys", "~{puna-keys}:*", "~{puna-quota:*")
    keys = KeyRedis(server.url_of(Role.GATEWAY))
    try:
        await keys.look("", "gateway", {})
        with pytest.raises(KeyStoreUnavailableError, match="permissions"):
            await keys.exchange_shares("gateway", "[]")
        assert keys.is_up
    finally:
        await keys.close()


@pytest.mark.parametrize("role", RULES)
@pytest.mark.parametrize(
    "command",
    [
        *("FLUSHALL", "FLUSHDB", "CONFIG GET *", "KEYS *", "SCAN 0", "ACL LIST", "SAVE", "SHUTDOWN", "MONITOR"),
        *(
            "MODULE LIST",
            "INFO",
            "INFO clients",
            "REPLICAOF NO ONE",
            "SCRIPT FLUSH",
            "EVAL return\t1 0",
            "CLIENT LIST",
        ),
        *("PUBLISH a b", "SUBSCRIBE a", "GET other", "SET {sched}x 1", "SET {puna-keys} 1"),
    ],
)
async def test_a_role_is_refused_everything_else(server: RedisServer, role: Role, command: str) -> None:
    await expect_refusal(server.url_of(role), *command.split(" "))


@pytest.mark.parametrize(
    ("role", "key"), [(Role.GATEWAY, "{sched}:leader"), (Role.SCHEDULER, "{puna-keys}:made")], ids=lambda value: value
)
async def test_a_role_reads_and_writes_no_keys_of_another(server: RedisServer, role: Role, key: str) -> None:
    await expect_refusal(server.url_of(role), "GET", key)
    await expect_refusal(server.url_of(role), "SET", key, "1")
    await expect_refusal(server.url_of(role), "DEL", key)


async def expect_refusal(url: str, *words: str) -> None:
    client = open_redis(url, timeout_s=5.0, connections_max=1)
    try:
        with pytest.raises(NoPermissionError):
            await client.execute_command(*words)  # type: ignore[no-untyped-call]
    finally:
        await client.aclose()


async def test_passwords_stay_and_no_file_but_their_own_has_them(tmp_path: Path) -> None:
    users = write_users(tmp_path)
    passwords = {role: (tmp_path / role / PASSWORD).read_text() for role in RULES}
    before = users.read_text()
    assert not any(password in before for password in passwords.values())
    write_users(tmp_path)
    assert users.read_text() == before
    assert users == tmp_path / USERS
    assert {(tmp_path / role / PASSWORD).stat().st_mode & 0o777 for role in RULES} == {0o600}


def read(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")


async def test_a_new_password_is_used_by_the_next_connection(tmp_path: Path, server: RedisServer) -> None:
    file = tmp_path / "password"
    file.write_text("wrong")
    url = server.url_of(Role.SCHEDULER)
    password = read(url.partition("password_file=")[2])
    client = open_redis(f"{url.partition('?')[0]}?password_file={file}", timeout_s=5.0, connections_max=1)
    try:
        with pytest.raises(RedisError):
            await client.get("{sched}:fence")
        file.write_text(password)
        assert await client.get("{sched}:fence") is None
    finally:
        await client.aclose()


@asynccontextmanager
async def tls_in_front_of(server: RedisServer, directory: Path) -> AsyncIterator[int]:
    """A port with TLS for localhost, since the embedded server is built without."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*write_certificate(directory))
    tasks: set[asyncio.Task[None]] = set()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_unix_connection(server.url.removeprefix("unix://"))

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                target.write(data)
            target.close()

        tasks.update(asyncio.create_task(copy(*pair)) for pair in ((reader, outer), (inner, writer)))

    listener = await asyncio.start_server(relay, "localhost", 0, ssl=context)
    async with listener:
        yield listener.sockets[0].getsockname()[1]
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_connection_with_tls_trusts_the_named_authority_alone(tmp_path: Path, server: RedisServer) -> None:
    query = server.url_of(Role.SCHEDULER).partition("?")[2]
    async with tls_in_front_of(server, tmp_path) as port:
        url = f"rediss://scheduler@localhost:{port}/0?{query}"
        for more, accepted in ((f"&ssl_ca_certs={tmp_path / 'chain.pem'}", True), ("", False)):
            client: Redis = open_redis(url + more, timeout_s=5.0, connections_max=1)
            try:
                if accepted:
                    assert await client.get("{sched}:fence") is None
                else:
                    with pytest.raises(RedisError, match="CERTIFICATE_VERIFY_FAILED"):
                        await client.get("{sched}:fence")
            finally:
                await client.aclose()

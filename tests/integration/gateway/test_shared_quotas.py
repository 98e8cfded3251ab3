"""Quotas of keys over two gateways that share a real Redis; and each gateway's part while it is away."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from common.clock import SystemClock
from common.errors import RateLimited
from common.trust.roles import Role
from gateway.core.keys.keys import ALL_SCOPES, Key, Quota
from gateway.keys import key_redis
from gateway.keys.key_redis import KeyRedis
from gateway.keys.quota_book import QuotaBook, QuotaUsage
from tests.redis_server import RedisServer, redis_server
from tests.waiting import Stopwatch


def a_key(**quota: Any) -> Key:
    return Key(id="abcdefgh", digest="", owner="ada", tenant="ada", scopes=ALL_SCOPES, quota=Quota(**quota))


class Gateway:
    """A gateway as far as quotas go: a connection of its own, accounts of its own."""

    def __init__(self, url: str) -> None:
        self.redis = KeyRedis(url)
        self.book = QuotaBook(SystemClock(), self.redis)
        self._number = 0

    async def look(self) -> None:
        look = await self.redis.look("", f"gateway-{id(self)}", {})
        self.book.gateways = look.gateways

    @asynccontextmanager
    async def request(self, key: Key, name: str = "") -> AsyncIterator[QuotaUsage]:
        """As the authorizer opens one."""
        self._number += 1
        async with self.book.open(key, name or f"{id(self)}-{self._number}") as usage:
            await usage.enter()
            try:
                yield usage
            finally:
                usage.account.leave()
                usage.settle(0)

    async def admits(self, key: Key, tokens: int | None = None) -> bool:
        try:
            async with self.request(key) as usage:
                if tokens is not None:
                    await usage.reserve(tokens)
                    usage.settle(tokens)
        except RateLimited:
            return False
        await self.book.all_left()
        return True


@pytest.fixture
async def server() -> AsyncIterator[RedisServer]:
    async with redis_server() as running:
        yield running


@pytest.fixture
async def two(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Gateway, Gateway]]:
    """Two gateways that have time for each command: one without an answer would count alone, with its own part."""
    monkeypatch.setattr(key_redis, "COMMAND_TIMEOUT_S", 20.0)
    gateways = Gateway(server.url_of(Role.GATEWAY)), Gateway(server.url_of(Role.GATEWAY))
    for _ in range(2):
        for gateway in gateways:
            await gateway.look()
    yield gateways
    for gateway in gateways:
        await gateway.book.all_left()
        await gateway.redis.close()


async def test_requests_a_minute_are_counted_together(two: tuple[Gateway, Gateway]) -> None:
    key = a_key(requests_per_minute=5)
    watch = Stopwatch()
    admitted = [await two[number % 2].admits(key) for number in range(9)]
    # The bucket refills while the test runs: one request every twelve seconds.
    assert 5 <= sum(admitted) <= 5 + watch.wall_s / 12
    assert admitted[:5] == [True] * 5
    while await two[0].admits(key):
        pass
    async with two[1].book.open(key, "one more") as usage:
        with pytest.raises(RateLimited) as refusal:
            await usage.enter()
    assert 0 < (refusal.value.retry_after_s or 0) <= 12
    assert usage.levels["requests"].limit == 5
    assert usage.levels["requests"].remaining == 0


async def test_many_at_once_from_both_sides_get_the_limit_and_no_more(two: tuple[Gateway, Gateway]) -> None:
    key = a_key(requests_per_minute=20)
    watch = Stopwatch()
    admitted = await asyncio.gather(*(two[number % 2].admits(key) for number in range(60)))
    assert 20 <= sum(admitted) <= 20 + watch.wall_s / 3


async def test_tokens_are_reserved_and_settled_once_by_the_request(
    server: RedisServer, two: tuple[Gateway, Gateway]
) -> None:
    key, watch = a_key(tokens_per_minute=1000), Stopwatch()
    async with two[0].request(key, "one") as usage:
        await usage.reserve(900)
        async with two[1].book.open(key, "two") as other:
            await other.enter()
            with pytest.raises(RateLimited, match="1000 tokens a minute"):
                await other.reserve(500)
            other.account.leave()
        usage.settle(100)
    await two[0].book.all_left()
    await usage.leave_redis()  # as after an answer of Redis that was lost: told twice, counted once
    async with two[1].request(key, "three") as third:
        await third.reserve(800)
        assert 100 <= third.levels["tokens"].remaining <= 101 + watch.wall_s * 1000 / 60
        third.settle(800)
    await two[1].book.all_left()
    async with server.client() as client:
        assert [name async for name in client.scan_iter("*held*")] == []


async def test_a_day_has_its_own_budget(two: tuple[Gateway, Gateway]) -> None:
    key = a_key(tokens_per_minute=10_000, tokens_per_day=1500)
    assert await two[0].admits(key, 1000)
    assert await two[1].admits(key, 500)
    async with two[0].request(key) as usage:
        with pytest.raises(RateLimited, match="1500 tokens a day") as refusal:
            await usage.reserve(100)
        # A fifteenth of a day's budget is back in a fifteenth of a day.
        assert refusal.value.retry_after_s == pytest.approx(86_400 / 15, rel=0.01)
        assert usage.levels["tokens"].remaining >= 8400  # a refusal takes nothing of the other bucket


async def test_places_are_shared_and_come_back(two: tuple[Gateway, Gateway]) -> None:
    key = a_key(concurrency=2)
    async with two[0].request(key), two[1].request(key):
        assert not await two[0].admits(key)
        assert not await two[1].admits(key)
    await asyncio.gather(two[0].book.all_left(), two[1].book.all_left())
    # A client that asks again at once at the same gateway has its place, whatever Redis was told so far.
    for _ in range(20):
        async with two[0].request(key), two[0].request(key):
            pass


async def test_the_place_of_a_gateway_that_died_comes_back(server: RedisServer, two: tuple[Gateway, Gateway]) -> None:
    key = a_key(concurrency=1)
    taken = await two[0].redis.take(key.id, "of the dead", 1, [])
    assert taken.short == ""
    assert not await two[1].admits(key)
    async with server.client() as client:
        running = "{puna-quota:abcdefgh}:running"
        assert 0 < await client.pttl(running) <= 60_000
        await client.zadd(running, {"of the dead": 1})  # its lease is over
    assert await two[1].admits(key)


async def test_without_redis_each_gives_its_part(server: RedisServer, two: tuple[Gateway, Gateway]) -> None:
    key = a_key(requests_per_minute=20, concurrency=4)
    assert await two[0].admits(key)
    await server.kill()
    watch = Stopwatch()
    admitted = [await two[number % 2].admits(key) for number in range(60)]
    # Ten each, one of which the first has used; both refill a request every six seconds.
    assert 18 <= sum(admitted) <= 21 + watch.wall_s / 3
    async with two[0].book.open(a_key(concurrency=4), "a"), two[0].book.open(a_key(concurrency=4), "b"):
        pass


async def test_a_lone_gateway_without_redis_gives_it_all() -> None:
    book, key = QuotaBook(SystemClock(), None), a_key(requests_per_minute=5)
    admitted = 0
    for number in range(8):
        async with book.open(key, str(number)) as usage:
            try:
                await usage.enter()
            except RateLimited:
                continue
            usage.account.leave()
            admitted += 1
    assert admitted == 5


async def test_a_redis_that_comes_back_is_used_again(server: RedisServer, two: tuple[Gateway, Gateway]) -> None:
    await server.kill()
    key = a_key(requests_per_minute=2)
    assert await two[0].admits(key)
    was_up = two[0].redis.is_up
    await server.start()
    await two[0].look()
    assert (was_up, two[0].redis.is_up) == (False, True)
    assert await two[0].admits(key)
    async with server.client() as client:
        assert await client.hkeys("{puna-quota:abcdefgh}:levels") == ["requests"]

"""Use of keys: shared between gateways in Redis, and each gateway's part of it while Redis is away."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from common.clock import Clock
from common.rate_limits import BucketLevel, level_of
from gateway.core.keys.keys import Key, Quota
from gateway.core.keys.quotas import PERIODS_S, Account, too_many_at_once, used_up
from gateway.keys.key_redis import LEASE_S, KeyRedis, KeyStoreUnavailableError, QuotaResult, SharedBucket

# Often enough that two misses in a row lose no place.
RENEW_EVERY_S = LEASE_S / 4


@dataclass(eq=False, slots=True, kw_only=True)
class QuotaUsage:
    """Part of its key's quota that one request takes."""

    key: Key
    request_id: str
    account: Account
    clock: Clock
    redis: KeyRedis | None
    levels: dict[str, BucketLevel] = field(default_factory=dict)  # as last heard
    reserved: int = 0  # tokens, as counted here
    used: int = 0
    settled: bool = False
    in_redis: bool = False  # Redis holds something of this request

    async def enter(self) -> None:
        """Enter one more request.

        Raises:
            RateLimited: too many in this minute, or at once.
        """
        taken = await self._take(requests=1, tokens=0, concurrency=self.key.quota.concurrency or 0)
        try:
            if taken is None:
                self.account.enter(self.clock.now_s())
            else:
                self._check(taken)
                self.account.note_entry(self.clock.now_s())
        finally:
            if taken is None:
                self.levels = self.account.levels(self.clock.now_s())

    async def reserve(self, tokens: int) -> None:
        """Take tokens for what the request may come to.

        Raises:
            RateLimited: the key has not so many left.
        """
        quota = self.key.quota
        if quota.tokens_per_minute is None and quota.tokens_per_day is None:
            return
        taken = await self._take(requests=0, tokens=tokens, concurrency=0)
        if taken is None:
            try:
                self.reserved += self.account.reserve(tokens, self.clock.now_s())
            finally:
                self.levels = self.account.levels(self.clock.now_s())
        else:
            self._check(taken)
            self.reserved += self.account.note_reserve(tokens, self.clock.now_s())

    def settle(self, used: int) -> None:
        """Settle a finished request with its tokens; written to Redis when it leaves."""
        if not self.settled:
            self.settled, self.used = True, used
            self.account.settle(reserved=self.reserved, used=used)

    async def leave_redis(self) -> None:
        """Give back the place, and what was reserved and not used."""
        if self.redis is not None and self.in_redis:
            with contextlib.suppress(KeyStoreUnavailableError):
                of_tokens = [one for one in _buckets(self.key.quota) if one.name != "requests"]
                await self.redis.settle(self.key.id, self.request_id, self.used, of_tokens)

    async def _take(self, *, requests: int, tokens: int, concurrency: int) -> QuotaResult | None:
        """Return the answer of Redis; None if Redis is away."""
        if self.redis is None:
            return None
        buckets = _buckets(self.key.quota, requests=requests, tokens=tokens)
        try:
            taken = await self.redis.take(self.key.id, self.request_id, concurrency, buckets)
        except KeyStoreUnavailableError:
            return None
        self.in_redis = self.in_redis or not taken.short
        self.levels = {
            one.name: level_of(one.limit, one.period_s, full_in_s)
            for one, full_in_s in zip(buckets, taken.full_in_s, strict=True)
            if one.name != "day"
        }
        return taken

    def _check(self, taken: QuotaResult) -> None:
        if taken.short == "concurrency":
            raise too_many_at_once(self.key.quota)
        if taken.short:
            raise used_up(self.key.quota, taken.short, taken.wait_s)


class QuotaBook:
    """The accounts of every key, on the event loop. Without Redis each gateway gives the whole limit."""

    def __init__(self, clock: Clock, redis: KeyRedis | None) -> None:
        """Start with nothing used."""
        self.gateways = 1  # that share the limits, as last heard
        self._clock = clock
        self._redis = redis
        self._accounts: dict[str, Account] = {}
        self._running: set[QuotaUsage] = set()
        self._leaving: dict[str, set[asyncio.Task[None]]] = {}  # by key

    @contextlib.asynccontextmanager
    async def open(self, key: Key, request_id: str) -> AsyncIterator[QuotaUsage]:
        """Open the usage of one request, from its begin to its end; call its `enter` first."""
        # Tokens of this gateway are given back before more are taken: a client that asks again at once, with one
        # request at a time, is not refused.
        await asyncio.gather(*self._leaving.get(key.id, ()))
        unlimited = key.quota == Quota()
        usage = QuotaUsage(
            key=key,
            request_id=request_id,
            account=self._account(key),
            clock=self._clock,
            redis=None if unlimited else self._redis,
        )
        self._running.add(usage)
        try:
            yield usage
        finally:
            self._running.discard(usage)
            self._leave_soon(usage)

    async def watch(self) -> None:
        """Keep the places of requests that take long, until cancelled."""
        while self._redis is not None:
            await asyncio.sleep(RENEW_EVERY_S)
            by_key: dict[str, list[str]] = {}
            for usage in self._running:
                if usage.in_redis and usage.key.quota.concurrency is not None:
                    by_key.setdefault(usage.key.id, []).append(usage.request_id)
            for key_id, requests in by_key.items():
                with contextlib.suppress(KeyStoreUnavailableError):
                    await self._redis.renew(key_id, requests)

    async def all_left(self) -> None:
        """Return once everything is written to Redis."""
        await asyncio.gather(*(task for tasks in self._leaving.values() for task in tasks))

    def _leave_soon(self, usage: QuotaUsage) -> None:
        """Leave in a task of its own: the end of an answer does not wait for Redis."""
        if not usage.in_redis:
            return
        key_id = usage.key.id
        tasks = self._leaving.setdefault(key_id, set())
        task = asyncio.create_task(usage.leave_redis(), name="quota")
        tasks.add(task)

        def left(done: asyncio.Task[None]) -> None:
            tasks.discard(done)
            if not tasks and self._leaving.get(key_id) is tasks:
                del self._leaving[key_id]

        task.add_done_callback(left)

    def _account(self, key: Key) -> Account:
        share = self.gateways
        account = self._accounts.setdefault(key.id, Account(key.quota, share))
        if account.quota != key.quota or account.share != share:
            account.change_quota(key.quota, share)
        return account


def _buckets(quota: Quota, *, requests: int = 0, tokens: int = 0) -> list[SharedBucket]:
    """Return the limits of a quota, and what is wanted of each."""
    return [
        SharedBucket(
            name=name, limit=limit, period_s=PERIODS_S[name], amount=requests if name == "requests" else tokens
        )
        for name, limit in quota.limits.items()
    ]

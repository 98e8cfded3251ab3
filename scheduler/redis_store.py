"""Leadership and desired placements in Redis. Every command has a deadline; a Redis that is away is not waited for."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
from redis.exceptions import RedisError

from common.clock import Clock
from common.errors import StaleFence, StartupError
from common.redis_client import open_redis
from common.telemetry.logs import get_logger
from scheduler import metrics, redis_scripts
from scheduler.core.sizes.margins import NO_MARGINS, Margins
from scheduler.core.values.constraints import Constraints
from scheduler.core.values.desired import DesiredPlacement
from scheduler.core.values.model_alias import ModelAlias
from scheduler.records import (
    decode,
    decode_alias,
    decode_constraints,
    decode_drain,
    decode_margins,
    encode,
    encode_alias,
    encode_constraints,
    encode_drain,
    encode_margins,
)

log = get_logger()

COMMAND_TIMEOUT_S = 0.5
LEASE_TTL_S = 5.0
# After so many failures in a row nothing is tried for a second: callers get their refusal at once.
CIRCUIT_FAILURES = 3
CIRCUIT_OPEN_S = 1.0

Result = TypeVar("Result")


class StoreUnavailableError(Exception):
    """The store did not answer, or not with what was asked. The caller's move: try again later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderLease:
    """Leader, as the store has it."""

    is_mine: bool
    holder: str
    fence: int


class RedisStore:
    """Owned by the scheduler's event loop. Methods raise `StoreUnavailableError`; none takes longer than a second."""

    def __init__(self, url: str, clock: Clock) -> None:
        """Prepare a client, which connects when first used.

        Raises:
            StartupError: the URL is none.
        """
        try:
            self._redis: Any = open_redis(url, timeout_s=COMMAND_TIMEOUT_S, connections_max=8)
        except ValueError as error:
            raise StartupError(f"PUNA_REDIS_URL: {error}") from error
        self._clock = clock
        self._versions: dict[tuple[str, str], int] = {}  # by hash and name in it
        self._failures = 0
        self._closed_until_s = 0.0
        self._acquire = self._redis.register_script(redis_scripts.ACQUIRE)
        self._release = self._redis.register_script(redis_scripts.RELEASE)
        self._write = self._redis.register_script(redis_scripts.WRITE)

    async def acquire(self, leader_id: str, *, high_water: int) -> LeaderLease:
        """Take or renew the lease."""
        keys = [redis_scripts.LEADER, redis_scripts.FENCE, redis_scripts.SCHEMA]
        arguments: list[str | int] = [leader_id, round(LEASE_TTL_S * 1000), high_water, redis_scripts.SCHEMA_VERSION]
        status, holder, fence = await self._ask("acquire", lambda: self._acquire(keys=keys, args=arguments))
        if status == -1:
            raise StoreUnavailableError(
                f"state store has schema {holder}, this build speaks {redis_scripts.SCHEMA_VERSION}"
            )
        return LeaderLease(is_mine=status == 1, holder=holder, fence=int(fence))

    async def release(self, leader_id: str) -> None:
        """Give the lease back, if it is ours."""
        await self._ask("release", lambda: self._release(keys=[redis_scripts.LEADER], args=[leader_id]))

    async def load(self) -> tuple[DesiredPlacement, ...]:
        """Read every desired placement. An unreadable one is skipped and left there."""
        return tuple((await self._load(redis_scripts.PLACEMENTS, decode)).values())

    async def load_constraints(self) -> dict[str, Constraints]:
        """Load the constraints that commands have set, by model name. An unreadable one stays stored."""
        return await self._load(redis_scripts.CONSTRAINTS, decode_constraints)

    async def load_margins(self) -> Margins:
        """Load the margins that leaders have learned. An unreadable one stays stored."""
        margins = NO_MARGINS
        for piece in (await self._load(redis_scripts.MARGINS, decode_margins)).values():
            margins = margins.with_all(piece)
        return margins

    async def load_drains(self) -> dict[str, float]:
        """Load the time that sequences may take to end, by drained node. An unreadable one stays stored."""
        return await self._load(redis_scripts.DRAINS, decode_drain)

    async def load_aliases(self) -> dict[str, ModelAlias] | None:
        """Read the aliases by key; None: none was ever written here. An unreadable one is skipped and left there."""
        records = await self._load(redis_scripts.ALIASES, decode_alias)
        if not records:
            return None
        return {key: alias for key, alias in records.items() if alias is not None}

    async def _load(self, key: str, read: Callable[[bytes], Result]) -> dict[str, Result]:
        stored: dict[str, str] = await self._ask("load", lambda: self._redis.hgetall(key))
        self._versions = {known: version for known, version in self._versions.items() if known[0] != key}
        records: dict[str, Result] = {}
        for name, text in stored.items():
            try:
                fields = orjson.loads(text)
                self._versions[key, name] = int(fields["version"])
                records[name] = read(orjson.dumps(fields["record"]))
            except (ValueError, KeyError, TypeError) as error:
                log.warning("store.unreadable_record", key=key, name=name, text=str(error))
        return records

    async def save(self, fence: int, record: DesiredPlacement) -> None:
        """Write a record if `fence` is still current.

        Raises:
            StaleFence: it is not, or another scheduler wrote the record.
        """
        await self._put(fence, redis_scripts.PLACEMENTS, record.placement_id, encode(record))

    async def remove(self, fence: int, placement_id: str) -> None:
        """Forget a record; raises as `save`."""
        if (redis_scripts.PLACEMENTS, placement_id) in self._versions:
            await self._put(fence, redis_scripts.PLACEMENTS, placement_id, "")

    async def save_constraints(self, fence: int, model_name: str, constraints: Constraints | None) -> None:
        """Write what is wanted of a model, or forget it; raises as `save`."""
        text = "" if constraints is None else encode_constraints(constraints)
        await self._put(fence, redis_scripts.CONSTRAINTS, model_name, text)

    async def save_margins(self, fence: int, margins: Margins) -> None:
        """Write what was learned; raises as `save`."""
        for name, text in encode_margins(margins).items():
            await self._put(fence, redis_scripts.MARGINS, name, text)

    async def save_drain(self, fence: int, node_id: str, budget_s: float | None) -> None:
        """Write that a node is out of use, or forget it; raises as `save`."""
        await self._put(fence, redis_scripts.DRAINS, node_id, "" if budget_s is None else encode_drain(budget_s))

    async def save_alias(self, fence: int, key: str, alias: ModelAlias | None) -> None:
        """Write an alias, or forget it; raises as `save`."""
        if (redis_scripts.ALIASES, redis_scripts.ALIASES_MARK) not in self._versions:
            await self._put(fence, redis_scripts.ALIASES, redis_scripts.ALIASES_MARK, "{}")
        await self._put(fence, redis_scripts.ALIASES, key, "" if alias is None else encode_alias(alias))

    async def _put(self, fence: int, key: str, name: str, text: str) -> None:
        keys = [redis_scripts.FENCE, key]
        arguments: list[str | int] = [fence, name, self._versions.get((key, name), 0), text]
        status, answer = await self._ask("write", lambda: self._write(keys=keys, args=arguments))
        if status == 0:
            raise StaleFence(f"the state store is at fence {answer or 'none'}, not {fence}")
        if status == -1:
            raise StaleFence(f"{name} was written by another scheduler")
        if text:
            self._versions[key, name] = int(answer)
        else:
            self._versions.pop((key, name), None)

    async def close(self) -> None:
        """Close all connections."""
        await self._redis.aclose()

    async def _ask(self, name: str, command: Callable[[], Awaitable[Result]]) -> Result:
        if self._clock.now_s() < self._closed_until_s:
            metrics.STORE_CALLS.labels(command=name, outcome="skipped").inc()
            raise StoreUnavailableError("state store unreachable: waiting before the next attempt")
        try:
            async with asyncio.timeout(2 * COMMAND_TIMEOUT_S):  # a connect and a command
                with metrics.STORE_CALL_S.labels(command=name).time():
                    answer = await command()
        except (RedisError, OSError, TimeoutError) as error:
            metrics.STORE_CALLS.labels(command=name, outcome="failed").inc()
            self._failed()
            text = str(error) or type(error).__name__
            raise StoreUnavailableError(f"state store unreachable: {text}") from error
        self._failures = 0
        metrics.STORE_UP.set(1)
        metrics.STORE_CALLS.labels(command=name, outcome="ok").inc()
        return answer

    def _failed(self) -> None:
        metrics.STORE_UP.set(0)
        self._failures += 1
        if self._failures >= CIRCUIT_FAILURES:
            self._closed_until_s = self._clock.now_s() + CIRCUIT_OPEN_S

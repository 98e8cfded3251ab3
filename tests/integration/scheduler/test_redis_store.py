"""Promises of the Redis scripts, on a real Redis."""

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import uvloop

from common.clock import SystemClock
from common.errors import StaleFence, StartupError
from common.fences import fence_max
from common.spec.layout import Layout
from common.trust.roles import Role
from scheduler.core.sizes.margins import MarginKey, Margins
from scheduler.core.state.effects import RemoveDesired, SaveConstraints, SaveDesired, SaveMargins
from scheduler.core.values.constraints import Constraints
from scheduler.core.values.desired import DesiredPlacement, Phase
from scheduler.core.values.memory import DeviceBytes, MemoryOrigin, MemoryReport
from scheduler.redis_store import RedisStore, StoreUnavailableError
from tests.redis_server import RedisServer
from tests.waiting import Stopwatch

RECORD = DesiredPlacement(
    placement_id="p1",
    generation=3,
    phase=Phase.STARTING,
    node_id="a",
    model_name="m:latest",
    model_digest="d" * 64,
    layout=Layout(context_tokens=4096, slots=8, batch_tokens=512, use_mmap=False).on("GPU-1", 33),
    planned=MemoryReport(
        origin=MemoryOrigin.MEASURED,
        devices=(DeviceBytes(device_id="GPU-1", weights_bytes=5, cache_bytes=6, graph_bytes=7),),
        host=DeviceBytes(graph_bytes=8),
    ),
    keep_alive_ms=-1,
)

KEY = MarginKey(build="b1", architecture="llama", device_kind="CUDA T4")


@pytest.fixture
async def store(redis: RedisServer) -> AsyncIterator[RedisStore]:
    store = RedisStore(redis.url_of(Role.SCHEDULER), SystemClock())
    yield store
    await store.close()


@pytest.fixture
async def other(redis: RedisServer) -> AsyncIterator[RedisStore]:
    """The same Redis, as another scheduler uses it."""
    store = RedisStore(redis.url_of(Role.SCHEDULER), SystemClock())
    yield store
    await store.close()


async def test_one_leads_and_the_other_learns_who(store: RedisStore, other: RedisStore) -> None:
    first = await store.acquire("one@a:1", high_water=0)
    second = await other.acquire("two@b:1", high_water=0)
    assert first.is_mine
    assert not second.is_mine
    assert second.holder == "one@a:1"


async def test_a_renewal_keeps_the_fence_and_a_new_term_raises_it(store: RedisStore, other: RedisStore) -> None:
    first = await store.acquire("one", high_water=0)
    assert await store.acquire("one", high_water=0) == first
    await store.release("one")
    assert (await other.acquire("two", high_water=0)).fence > first.fence


async def test_only_the_holder_can_release(store: RedisStore, other: RedisStore) -> None:
    await store.acquire("one", high_water=0)
    await other.release("two")
    assert not (await other.acquire("two", high_water=0)).is_mine


async def test_the_fence_is_at_least_the_time_of_the_server_so_that_an_empty_store_does_not_lower_it(
    store: RedisStore, redis: RedisServer
) -> None:
    first = await store.acquire("one", high_water=0)
    assert first.fence >= (time.time() - 60) * 1000
    async with redis.client() as client:
        await client.flushall()
    assert (await store.acquire("one", high_water=0)).fence > first.fence


async def test_the_fence_rises_above_what_a_host_has_seen_and_above_what_is_stored(
    store: RedisStore, redis: RedisServer
) -> None:
    seen = fence_max(time.time()) - 60_000
    assert (await store.acquire("one", high_water=seen)).fence == seen + 1
    async with redis.client() as client:
        assert await client.get("{sched}:fence") == str(seen + 1)
    await store.release("one")
    assert (await store.acquire("one", high_water=0)).fence == seen + 2


@pytest.mark.parametrize("poison", [str(2**64), "1.8e308", "nan", "inf", "-1", "1.5", "x"])
async def test_a_stored_fence_that_no_message_or_host_takes_is_set_aside(
    store: RedisStore, redis: RedisServer, poison: str
) -> None:
    """Also in the middle of a term, whose lease an older scheduler may have left."""
    first = await store.acquire("one", high_water=0)
    async with redis.client() as client:
        await client.set("{sched}:fence", poison)
        again = await store.acquire("one", high_water=0)
        assert again.is_mine
        assert first.fence <= again.fence <= fence_max(time.time())
        assert await client.get("{sched}:fence") == str(again.fence)
    assert await store.acquire("one", high_water=0) == again


async def test_a_high_water_that_no_host_should_have_seen_does_not_move_the_fence(store: RedisStore) -> None:
    first = await store.acquire("one", high_water=0)
    assert await store.acquire("one", high_water=2**64 - 1) == first


async def test_a_record_comes_back_as_it_was_written(store: RedisStore, other: RedisStore) -> None:
    lease = await store.acquire("one", high_water=0)
    await store.write(SaveDesired(fence=lease.fence, record=RECORD))
    await store.write(SaveDesired(fence=lease.fence, record=RECORD.in_phase(Phase.RUNNING)))
    assert await other.load() == (RECORD.in_phase(Phase.RUNNING),)
    await store.write(RemoveDesired(fence=lease.fence, placement_id="p1"))
    assert await other.load() == ()


async def test_margins_outlive_their_leader_and_only_a_leader_writes_them(store: RedisStore, other: RedisStore) -> None:
    old = await store.acquire("one", high_water=0)
    learned = Margins().with_residual(KEY, -3).with_exhausted("d" * 64, "CUDA T4", graph_and_cache_bytes=10)
    await store.write(SaveMargins(fence=old.fence, margins=learned))
    learned = learned.with_residual(KEY, 4096)
    await store.write(SaveMargins(fence=old.fence, margins=learned))
    await store.release("one")
    new = await other.acquire("two", high_water=0)
    assert await other.load_margins() == learned
    with pytest.raises(StaleFence):
        await store.write(SaveMargins(fence=old.fence, margins=learned.with_residual(KEY, 1)))
    assert await other.load_margins() == learned
    await other.write(SaveMargins(fence=new.fence, margins=learned.with_residual(KEY, 5)))
    assert (await store.load_margins()).residuals[KEY] == (-3, 4096, 5)


async def test_a_leader_of_the_past_writes_and_removes_nothing(store: RedisStore, other: RedisStore) -> None:
    old = await store.acquire("one", high_water=0)
    await store.write(SaveDesired(fence=old.fence, record=RECORD))
    await store.release("one")
    new = await other.acquire("two", high_water=0)
    for attempt in (
        store.write(SaveDesired(fence=old.fence, record=RECORD)),
        store.write(RemoveDesired(fence=old.fence, placement_id="p1")),
    ):
        with pytest.raises(StaleFence):
            await attempt
    assert await other.load() == (RECORD,)
    await other.write(SaveDesired(fence=new.fence, record=RECORD.in_phase(Phase.RUNNING)))


async def test_a_record_that_somebody_else_changed_is_not_overwritten(store: RedisStore, other: RedisStore) -> None:
    lease = await store.acquire("one", high_water=0)
    await store.write(SaveDesired(fence=lease.fence, record=RECORD))
    with pytest.raises(StaleFence, match="written by another scheduler"):
        await other.write(SaveDesired(fence=lease.fence, record=RECORD))


async def test_nothing_is_written_after_the_store_forgot_the_fence(store: RedisStore, redis: RedisServer) -> None:
    lease = await store.acquire("one", high_water=0)
    async with redis.client() as client:
        await client.flushall()
    with pytest.raises(StaleFence, match="at fence none"):
        await store.write(SaveDesired(fence=lease.fence, record=RECORD))


async def test_a_leader_learns_that_the_store_has_lost_its_last_writes(store: RedisStore, redis: RedisServer) -> None:
    """As when a replica takes over to which the last writes had not come."""
    lease = await store.acquire("one", high_water=0)
    await store.write(SaveDesired(fence=lease.fence, record=RECORD))
    async with redis.client() as client:
        await client.save()
    for name in ("m:latest", "n:latest"):
        await store.write(SaveConstraints(fence=lease.fence, caller_id="", model_name=name, constraints=WANTED))
    assert not (await store.acquire("one", high_water=0)).lost_writes
    await redis.kill()
    await redis.start()
    for lost_writes in (True, False):
        renewed = await store.acquire("one", high_water=0)
        assert (renewed.fence, renewed.lost_writes) == (lease.fence, lost_writes)
    assert (await store.load(), await store.load_constraints()) == ((RECORD,), {})


async def test_another_schema_is_left_alone(store: RedisStore, redis: RedisServer) -> None:
    async with redis.client() as client:
        await client.set("{sched}:schema", "2")
    with pytest.raises(StoreUnavailableError, match="schema 2, this build speaks 1"):
        await store.acquire("one", high_water=0)


async def test_an_unreadable_record_is_skipped_and_left_where_it_is(store: RedisStore, redis: RedisServer) -> None:
    lease = await store.acquire("one", high_water=0)
    await store.write(SaveDesired(fence=lease.fence, record=RECORD))
    async with redis.client() as client:
        await client.hset("{sched}:placements", "bad", "{")
        await client.hset("{sched}:placements", "odd", '{"version": 1, "record": {"placement_id": "odd"}}')
        assert await store.load() == (RECORD,)
        assert await client.hlen("{sched}:placements") == 3


async def test_fields_of_a_newer_build_are_ignored(store: RedisStore, redis: RedisServer) -> None:
    lease = await store.acquire("one", high_water=0)
    await store.write(SaveDesired(fence=lease.fence, record=RECORD))
    async with redis.client() as client:
        text = await client.hget("{sched}:placements", "p1")
        await client.hset("{sched}:placements", "p1", text.replace('"record":{', '"record":{"colour":"red",'))
    assert await store.load() == (RECORD,)


async def test_all_keys_share_one_hash_tag(store: RedisStore, redis: RedisServer) -> None:
    lease = await store.acquire("one", high_water=0)
    await store.write(SaveDesired(fence=lease.fence, record=RECORD))
    async with redis.client() as client:
        assert all(key.startswith("{sched}:") for key in await client.keys("*"))


class StandingClock(SystemClock):
    """However long a test takes, no time is over."""

    def now_s(self) -> float:
        return 100.0


async def test_a_store_that_is_away_is_refused_within_a_second_and_then_at_once(redis: RedisServer) -> None:
    store = RedisStore(redis.url_of(Role.SCHEDULER), StandingClock())
    await store.acquire("one", high_water=0)
    await redis.kill()
    watch = Stopwatch()
    for _ in range(3):
        with pytest.raises(StoreUnavailableError, match="state store unreachable"):
            await store.load()
    took_s = watch.wall_s
    with pytest.raises(StoreUnavailableError, match="waiting before the next attempt"):
        await store.load()
    await store.close()
    watch.assert_within(3, "three refusals", took_s=took_s)


def test_a_connection_that_a_reset_has_just_closed_is_a_store_that_is_away(redis: RedisServer) -> None:
    async def lose() -> None:
        store = RedisStore(redis.url_of(Role.SCHEDULER), SystemClock())
        await store.acquire("one", high_water=0)
        pool: Any = store._redis.connection_pool
        connect = pool.ensure_connection
        reset: list[Any] = []

        async def reset_once(connection: Any) -> None:
            await connect(connection)
            if not reset:
                reset.append(connection)
                connection._writer.transport.abort()

        pool.ensure_connection = reset_once
        with pytest.raises(StoreUnavailableError, match="state store unreachable"):
            await store.load()
        assert (await store.acquire("one", high_water=0)).is_mine
        await store.close()

    uvloop.run(lose())  # as services run


async def test_a_url_that_is_none_stops_the_start() -> None:
    with pytest.raises(StartupError, match="PUNA_REDIS_URL"):
        RedisStore("redsi://localhost", SystemClock())


# What operators want of models.

WANTED = Constraints(replicas_min=2, replicas_max=2, devices=("a/gpu-0",), max_bytes=(("*", 1 << 33),), priority=-1)


async def test_constraints_are_written_with_the_fence_and_read_by_the_next_leader(
    store: RedisStore, other: RedisStore
) -> None:
    lease = await store.acquire("one", high_water=0)
    await store.write(SaveConstraints(fence=lease.fence, caller_id="", model_name="m:latest", constraints=WANTED))
    await store.write(
        SaveConstraints(
            fence=lease.fence, caller_id="", model_name="n:latest", constraints=replace(WANTED, pinned=True)
        )
    )
    await store.write(
        SaveConstraints(fence=lease.fence, caller_id="", model_name="m:latest", constraints=replace(WANTED, priority=4))
    )
    assert await other.load_constraints() == {
        "m:latest": replace(WANTED, priority=4),
        "n:latest": replace(WANTED, pinned=True),
    }
    await store.write(SaveConstraints(fence=lease.fence, caller_id="", model_name="n:latest", constraints=None))
    assert set(await other.load_constraints()) == {"m:latest"}
    assert await other.load() == ()


async def test_a_former_leader_can_set_nothing(store: RedisStore, other: RedisStore) -> None:
    old = await store.acquire("one", high_water=0)
    await store.release("one")
    new = await other.acquire("two", high_water=0)
    await other.load_constraints()
    with pytest.raises(StaleFence):
        await store.write(SaveConstraints(fence=old.fence, caller_id="", model_name="m:latest", constraints=WANTED))
    await other.write(SaveConstraints(fence=new.fence, caller_id="", model_name="m:latest", constraints=WANTED))
    assert await other.load_constraints() == {"m:latest": WANTED}


async def test_a_record_of_constraints_that_cannot_be_read_is_left_where_it_is(
    store: RedisStore, redis: RedisServer
) -> None:
    await store.acquire("one", high_water=0)
    async with redis.client() as client:
        await client.hset("{sched}:constraints", "bad:latest", '{"version":1,"record":{"replicas_min":"many"}}')
        assert await store.load_constraints() == {}
        assert await client.hexists("{sched}:constraints", "bad:latest")

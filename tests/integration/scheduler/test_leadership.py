"""Leadership, the loss of the store or of the leader, and that running replicas do not notice either."""

import asyncio
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.clock import SystemClock
from common.errors import ModelUnavailable
from common.grpc.client import open_channel
from common.trust.roles import Role
from protos import scheduler_pb2
from scheduler.client import SchedulerClient
from scheduler.core.state.events import AliasesRead, LeadershipGained, LeadershipLost
from scheduler.leadership import SELF_STOP_S, Leadership
from scheduler.redis_store import RedisStore
from tests.faults.skewed_clock import skewed_clock
from tests.integration.scheduler.node_servicer import NodeAndDiscovery
from tests.integration.scheduler.surroundings import Running, redis_server, scheduler, short_directory
from tests.redis_server import RedisServer
from tests.waiting import Stopwatch, next_look, until

ROOT = Path(__file__).resolve().parents[3]
FAILOVER_S = 7.0


async def stored_fence(redis: RedisServer) -> int:
    async with redis.client() as client:
        return int(await client.get("{sched}:fence") or 0)


def is_standby(running: Running) -> bool:
    return "leads" in running.app.core.state.no_leader.message


async def ensure(client: SchedulerClient, name: str) -> None:
    async for _ in client.ensure_model(scheduler_pb2.EnsureModelRequest(model_name=name)):
        pass


async def eventually_ready(client: SchedulerClient, name: str, *, deadline_s: float) -> None:
    """Ask, as a gateway would, until the model is there."""
    watch = Stopwatch()
    while True:
        try:
            await ensure(client, name)
        except ModelUnavailable:
            assert not watch.is_past(deadline_s), f"{name} is not available within {deadline_s} s"
            await next_look()
        else:
            return


async def test_without_a_store_at_the_start_the_process_lives_says_so_and_recovers_by_itself(
    directory: Path, node: NodeAndDiscovery
) -> None:
    async with redis_server(directory, started=False) as redis, scheduler(directory, redis.url, node) as running:
        await until(lambda: bool(running.app.core.state.observed.nodes), what="the inventory has arrived")
        async with open_channel(running.app.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            answer = await stub.Check(health_pb2.HealthCheckRequest())  # type: ignore[attr-defined]
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        await until(lambda: "unreachable" in running.app.core.state.no_leader.message, what="the store was missed")
        watch = Stopwatch()
        with pytest.raises(ModelUnavailable, match="state store unreachable: ") as refused:
            await running.ensure("m")
        refused_s = watch.wall_s
        assert refused.value.retry_after_s is not None
        await redis.start()
        await eventually_ready(running.client, "m", deadline_s=5)
    assert len(node.starts) == 1
    watch.assert_within(1, "the refusal", took_s=refused_s)


async def test_a_store_that_goes_later_changes_nothing_for_what_is_warm(
    running: Running, node: NodeAndDiscovery, redis: RedisServer
) -> None:
    _, before = await running.ensure("m")
    await redis.kill()
    await until(lambda: running.app.core.state.leadership is None, deadline_s=4, what="leadership is given up in time")
    _, after = await running.ensure("m")
    assert after.replicas[0].placement == before.replicas[0].placement
    assert len(await running.placements("m")) == 1
    with pytest.raises(ModelUnavailable, match="state store unreachable"):
        await running.ensure("n")
    with pytest.raises(ModelUnavailable, match="state store unreachable"):
        await running.client.unload_model("m")
    assert node.stops == []
    await redis.start()  # empty
    await eventually_ready(running.client, "n", deadline_s=5)
    assert node.stops == []
    assert len(node.runners) == 2


async def test_a_store_that_forgets_everything_is_filled_again_and_the_fence_does_not_fall(
    running: Running, node: NodeAndDiscovery, redis: RedisServer
) -> None:
    await running.ensure("m")
    before = await stored_fence(redis)
    async with redis.client() as client:
        await client.flushall()
        (placement_id,) = node.runners
        watch = Stopwatch()
        while not await client.hexists("{sched}:placements", placement_id):
            assert not watch.is_past(10), "desired state is not back within 10 s"
            await next_look()
    assert await stored_fence(redis) > before
    assert len(await running.placements("m")) == 1
    await running.ensure("n")
    assert node.stops == []
    assert len(node.starts) == 2


async def test_a_command_right_after_the_store_forgot_is_carried_out_with_the_new_fence(
    running: Running, node: NodeAndDiscovery, redis: RedisServer
) -> None:
    async with redis.client() as client:
        await client.flushall()
    await running.ensure("m")
    assert node.starts[-1].fence.number == await stored_fence(redis)


async def test_a_standby_shows_routes_and_sends_commands_to_the_leader(
    running: Running, node: NodeAndDiscovery, redis: RedisServer
) -> None:
    await running.ensure("m")
    async with short_directory() as elsewhere, scheduler(elsewhere, redis.url, node) as standby:
        state = standby.app.core.state
        await until(lambda: is_standby(standby) and bool(state.observed.nodes), what="it knows the leader")
        await standby.ensure("m")
        assert len(await standby.placements("m")) == 1
        async with SchedulerClient(standby.app.address, leader_wait_s=0) as alone:
            with pytest.raises(ModelUnavailable, match=r"^no scheduler leads now$"):
                await alone.unload_model("m")
        async with SchedulerClient(f"{standby.app.address},{running.app.address}") as both:
            await ensure(both, "n")
            assert await both.unload_model("n") == 1


async def test_an_orderly_end_hands_over_at_once(directory: Path, node: NodeAndDiscovery, redis: RedisServer) -> None:
    async with short_directory() as elsewhere, scheduler(elsewhere, redis.url, node) as second:
        state = second.app.core.state
        await until(lambda: state.leadership is not None, what="the only scheduler leads")
        async with scheduler(directory, redis.url, node) as third:
            await until(lambda: is_standby(third), what="it is a standby")
            second.stop.set()
            await until(lambda: third.app.core.state.leadership is not None, deadline_s=2, what="it leads at once")


@asynccontextmanager
async def scheduler_process(
    directory: Path, redis: RedisServer, node: NodeAndDiscovery, **more: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A scheduler of its own, as `python -m scheduler` starts it; `more` is environment."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PUNA_")}
    environment |= {
        "PUNA_SCHEDULER_LISTEN": f"unix:{directory}/scheduler.sock",
        "PUNA_DISCOVERY_ADDRESS": node.address,
        "PUNA_REDIS_URL": redis.url_of(Role.SCHEDULER),
        **more,
    }
    with (directory / "scheduler.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "scheduler"), cwd=ROOT, env=environment, stderr=log
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSTOP])
async def test_when_the_leader_dies_or_hangs_the_standby_acts_within_seconds(
    directory: Path, redis: RedisServer, node: NodeAndDiscovery, signal_number: signal.Signals
) -> None:
    async with scheduler_process(directory, redis, node) as leader:
        await until(lambda: node.high[0] == 0 and (directory / "scheduler.sock").exists(), what="it listens")
        async with SchedulerClient(f"unix:{directory}/scheduler.sock") as client:
            await eventually_ready(client, "m", deadline_s=20)
        old = node.high
        async with short_directory() as elsewhere, scheduler(elsewhere, redis.url, node) as standby:
            state = standby.app.core.state
            await until(lambda: is_standby(standby) and bool(state.observed.nodes), what="it is a standby")
            leader.send_signal(signal_number)
            async with asyncio.timeout(FAILOVER_S):
                await standby.ensure("n")
            assert node.high[0] > old[0]
            assert node.high[1] != old[1]
            assert len(await standby.placements("m")) == 1, "what the old leader loaded goes on"
            if signal_number is signal.SIGSTOP:
                leader.send_signal(signal.SIGCONT)
                async with SchedulerClient(f"unix:{directory}/scheduler.sock", leader_wait_s=0) as client:
                    with pytest.raises(ModelUnavailable):
                        await client.unload_model("m")
    assert node.stops == []
    assert sorted(start.placement.generation for start in node.starts) == [1, 1]


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler for the slow clock")
async def test_a_leader_whose_clock_is_slow_stops_itself_before_another_leads(
    directory: Path, redis: RedisServer, node: NodeAndDiscovery
) -> None:
    clock = skewed_clock(directory, rate=1 / 1.4)
    log = directory / "scheduler.log"

    def seen(event: str) -> list[datetime]:
        lines = [json.loads(line) for line in log.read_text().splitlines() if f'"{event}"' in line]
        return [datetime.fromisoformat(line["timestamp"]) for line in lines]

    async with scheduler_process(directory, redis, node, **clock):
        await until(lambda: log.exists() and bool(seen("leadership.gained")), what="it leads")
        gained_s = time.monotonic()
        async with short_directory() as elsewhere, scheduler(elsewhere, redis.url, node) as standby:
            state = standby.app.core.state
            await until(lambda: is_standby(standby), what="the other is a standby")
            async with redis.client() as client:  # the store refuses the leader, and it alone
                await client.execute_command("ACL", "SETUSER", Role.SCHEDULER, "off")
                await client.execute_command("CLIENT", "KILL", "USER", Role.SCHEDULER)
            watch, happened = Stopwatch(), dict[str, float]()

            def have_changed() -> bool:
                if seen("leadership.lost"):
                    happened.setdefault("stopped", watch.wall_s)
                    happened.setdefault("term", time.monotonic() - gained_s)
                if state.leadership is not None:
                    happened.setdefault("led", watch.wall_s)
                return len(happened) == 3

            await until(have_changed, what="the slow leader stops itself and the standby leads")
    shown_s = (seen("leadership.lost")[0] - seen("leadership.gained")[0]).total_seconds()
    assert shown_s == pytest.approx(happened["term"] / 1.4, rel=0.1), "its clock is not slow"
    watch.assert_within(happened["led"], "the end of the slow leader's term", took_s=happened["stopped"])


class StoppedClock(SystemClock):
    """Stands still unless it is moved; what a process sees that was stopped for a while."""

    moved_s = 0.0

    def now_s(self) -> float:
        return 100.0 + self.moved_s


async def test_a_term_is_over_when_its_time_is_up_whether_or_not_anybody_was_asked(redis: RedisServer) -> None:
    clock = StoppedClock()
    store = RedisStore(redis.url, clock)
    heard: list[LeadershipGained | LeadershipLost | AliasesRead] = []
    ends: list[None] = []
    leadership = Leadership(store, clock, "me@here", on_change=heard.append, on_end=lambda: ends.append(None))
    running = asyncio.create_task(leadership.run())
    try:
        await until(lambda: bool(heard), what="it leads")
        assert isinstance(heard[0], LeadershipGained)
        fence = heard[0].fence
        clock.moved_s = SELF_STOP_S - 0.01
        assert leadership.may_act(fence)
        assert leadership.lapse() is None
        clock.moved_s = SELF_STOP_S
        assert not leadership.may_act(fence)
        assert isinstance(leadership.lapse(), LeadershipLost)
        assert leadership.lapse() is None, "told once"
        assert len(ends) == 1
        await until(lambda: len(heard) == 2, what="it leads again, the lease is still its own")
        assert leadership.may_act(leadership.fence)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await store.close()


async def test_a_load_that_changes_leaders_is_one_load(
    directory: Path, redis: RedisServer, node: NodeAndDiscovery
) -> None:
    node.may_finish.clear()
    async with short_directory() as elsewhere, scheduler(elsewhere, redis.url, node) as first:
        await until(lambda: first.app.core.state.leadership is not None, what="the first leads")
        await until(lambda: bool(first.app.core.state.observed.nodes), what="and sees")
        async with (
            scheduler(directory, redis.url, node) as second,
            SchedulerClient(f"{first.app.address},{second.app.address}") as client,
        ):
            load = asyncio.create_task(ensure(client, "m"))
            await until(lambda: bool(node.starts), what="the load has begun")
            first.stop.set()
            await until(lambda: len(node.starts) == 2, what="the second leads, and takes the load up")
            node.may_finish.set()
            await load
    ids = {(start.placement.placement_id, start.placement.generation) for start in node.starts}
    assert len(ids) == 1
    assert len(node.runners) == 1

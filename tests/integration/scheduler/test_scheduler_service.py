"""The scheduler as others meet it: over gRPC, among real neighbours."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from common.errors import (
    BadModelFile,
    DigestMismatch,
    InsufficientMemory,
    InvalidRequest,
    ModelNotFound,
)
from common.grpc.client import open_channel
from common.grpc.server import GrpcServer, bind_server
from protos import cluster_pb2, runner_pb2, runner_pb2_grpc, scheduler_pb2
from scheduler.client import SchedulerClient
from scheduler.core.state.observed import Observed
from tests.integration.scheduler.node_servicer import GIB, NodeAndDiscovery
from tests.integration.scheduler.surroundings import Running, scheduler
from tests.redis_server import RedisServer
from tests.waiting import Stopwatch, next_look, until


async def test_a_cold_model_is_loaded_with_progress_and_routed(running: Running, node: NodeAndDiscovery) -> None:
    events, route = await running.ensure("m")
    fractions = [event.loading.fraction for event in events if event.WhichOneof("event") == "loading"]
    assert fractions == sorted(fractions)
    (replica,) = route.replicas
    assert replica.placement.placement_id == node.starts[0].placement.placement_id
    assert replica.placement.incarnation == "i-1"
    assert replica.address == f"unix:/run/{replica.placement.placement_id}"
    assert replica.status.state == cluster_pb2.RUNNER_STATE_READY
    assert list(replica.device_names) == ["CPU"]
    assert (replica.layout.slots, replica.layout.context_tokens, replica.layout.batch_tokens) == (8, 4096, 512)
    assert route.model.description.architecture == "llama"
    assert node.starts[0].planned.host.weights_bytes == GIB


@pytest.mark.behaviour("B-84", "B-135")
async def test_five_callers_share_one_load_and_the_first_may_leave(running: Running, node: NodeAndDiscovery) -> None:
    node.may_finish.clear()
    first = asyncio.create_task(running.ensure("m"))
    await until(lambda: len(node.starts) == 1, what="the load has begun")
    others = [asyncio.create_task(running.ensure("m")) for _ in range(4)]
    await until(lambda: running.app.core.state.waiters() == 5, what="everybody waits")
    first.cancel()
    await until(lambda: running.app.core.state.waiters() == 4, what="the first one has left")
    node.may_finish.set()
    answers = await asyncio.gather(*others)
    assert len({route.replicas[0].placement.placement_id for _, route in answers}) == 1
    assert len(node.starts) == 1
    assert running.app.core.state.waiters() == 0


@pytest.mark.behaviour("B-133", "B-134")
async def test_a_stuck_load_delays_neither_other_models_nor_questions(running: Running, node: NodeAndDiscovery) -> None:
    node.may_finish.clear()
    stuck = asyncio.create_task(running.ensure("m"))
    await until(lambda: len(node.starts) == 1, what="the load has begun")
    other = asyncio.create_task(running.ensure("n"))
    await until(lambda: len(node.starts) == 2, what="the other load has begun beside it")
    watch = Stopwatch()
    table = await running.routes()
    nodes = await running.client.list_nodes()
    took_s = watch.wall_s
    assert {route.model.name for route in table.routes} == {"m:latest", "n:latest", "broken:latest"}
    assert [one.id for one in nodes.nodes] == ["node-a"]
    node.may_finish.set()
    await asyncio.gather(stuck, other)
    watch.assert_within(0.5, "two answers", took_s=took_s)


@pytest.mark.behaviour("B-139")
async def test_nodes_are_shown_with_what_is_promised_and_kept_free(running: Running, node: NodeAndDiscovery) -> None:
    await running.ensure("m")
    shown: list[cluster_pb2.Device] = []

    async def look() -> bool:
        shown[:] = (await running.client.list_nodes()).nodes[0].devices
        return shown[0].promised_bytes > 0

    async with asyncio.timeout(60):
        while not await look():
            await next_look()
    assert shown[0].promised_bytes >= node.model_bytes
    assert shown[0].reserve_bytes > 0


async def test_routes_follow_what_the_host_reports(running: Running, node: NodeAndDiscovery) -> None:
    tables: list[scheduler_pb2.RouteTable] = []

    async def watch() -> None:
        async for table in running.client.watch_routes():
            tables.append(table)  # noqa: PERF401  # one by one, as they come

    def replicas() -> list[str]:
        route = next(one for one in tables[-1].routes if one.model.name == "m:latest")
        return [one.placement.placement_id for one in route.replicas]

    watching = asyncio.create_task(watch())
    await until(lambda: bool(tables), what="a table on connect")
    await running.ensure("m")
    await until(lambda: bool(replicas()), what="the replica is in the table")
    state = running.app.core.state
    await until(lambda: any(one.runners for one in state.observed.nodes.values()), what="the inventory shows it too")
    node.kill_runner()
    await until(lambda: not replicas(), deadline_s=2, what="a dead runner leaves the table at once")
    versions = [table.version for table in tables]
    assert versions == sorted(set(versions))
    watching.cancel()


async def test_a_runner_that_died_is_followed_by_its_next_generation(running: Running, node: NodeAndDiscovery) -> None:
    await running.ensure("m")
    node.kill_runner()
    state = running.app.core.state
    await until(lambda: not any(True for _ in state.observed.replicas()), what="the death is known")
    _, route = await running.ensure("m")
    assert [start.placement.generation for start in node.starts] == [1, 2]
    assert len({start.placement.placement_id for start in node.starts}) == 1
    assert route.replicas[0].placement.generation == 2


async def test_a_host_hears_that_a_request_ended_its_replica(running: Running, node: NodeAndDiscovery) -> None:
    _, route = await running.ensure("m")
    ended = route.replicas[0].placement
    node.kill_runner()
    await until(lambda: bool(running.app.core.state.crashes), what="the crash is seen")
    poison = scheduler_pb2.PoisonRequest(name=b"12345678", replicas=[ended])
    await running.client.report_queues(scheduler_pb2.ReportQueuesRequest(gateway_id="g", poison=[poison]))
    await until(lambda: bool(node.excused), what="the host hears of it")
    assert [(one.placement_id, one.generation) for one in node.excused] == [(ended.placement_id, ended.generation)]


async def test_an_idle_replica_is_stopped_when_the_keep_alive_its_runner_reports_is_over(
    running: Running, node: NodeAndDiscovery
) -> None:
    await running.ensure("m")
    (runner,) = node.runners.values()
    runner.record.status.requests_total = 1
    runner.record.status.keep_alive_ms = 100
    node.changes.notify()
    await until(lambda: bool(node.stops), deadline_s=20, what="the replica is stopped")
    assert node.stops[0].drain_ms == 30_000
    await until(lambda: not node.runners, what="it is gone")


async def test_unload_stops_the_replica_and_says_how_many(running: Running, node: NodeAndDiscovery) -> None:
    await running.ensure("m")
    assert await running.client.unload_model("m") == 1
    await until(lambda: not node.runners, what="it is gone")
    assert await running.client.unload_model("m:latest") == 0


async def test_errors_reach_the_caller_as_what_they_are(running: Running, node: NodeAndDiscovery) -> None:
    with pytest.raises(ModelNotFound, match=r"^model 'nope' not found$"):
        await running.ensure("nope")
    with pytest.raises(ModelNotFound):
        await running.client.unload_model("nope")
    with pytest.raises(BadModelFile, match="cut off at byte 12"):
        await running.ensure("broken")
    with pytest.raises(InvalidRequest, match="model is required"):
        await running.ensure("")
    node.refuse_start = DigestMismatch("the bytes changed")
    with pytest.raises(DigestMismatch, match="the bytes changed"):
        await running.ensure("m")
    node.model_bytes = 100 * GIB
    node.refuse_start = None
    with pytest.raises(InsufficientMemory, match=r"requires more system memory \(100\.1 GiB\) than is available"):
        await running.ensure("n")
    assert node.runners == {}


async def test_health_and_reflection_answer(running: Running) -> None:
    async with open_channel(running.app.address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest())
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_reflection_names_the_service(running: Running) -> None:
    def ask() -> list[str]:
        with grpc.insecure_channel(running.app.address) as channel:
            return list(ProtoReflectionDescriptorDatabase(channel).get_services())

    assert "puna.v1.Scheduler" in await asyncio.to_thread(ask)


async def test_a_host_that_has_seen_a_higher_fence_is_commanded_with_a_higher_one(
    running: Running, node: NodeAndDiscovery
) -> None:
    state = running.app.core.state
    assert state.leadership is not None
    seen = state.leadership.fence + 3_600_000  # an hour: within what hosts accept
    node.high = (seen, "somebody else")
    _, route = await running.ensure("m")
    assert node.stale_refusals >= 1
    assert node.high[0] > seen
    assert len(node.runners) == 1
    assert route.replicas[0].placement.placement_id in node.runners


async def test_when_discovery_is_away_warm_models_stay_routed(
    running: Running, node: NodeAndDiscovery, redis: RedisServer
) -> None:
    await running.ensure("m")
    node.present = False  # a discovery that came back and does not know the node yet
    node._started_at_s = asyncio.get_running_loop().time()
    node.changes.notify()
    await asyncio.wait_for(running.routes(), timeout=60)
    assert len(await running.placements("m")) == 1
    await running.ensure("m")
    assert len(node.starts) == 1
    assert node.stops == []


async def test_watchers_of_routes_reconnect_to_a_scheduler_that_was_restarted(
    directory: Path, redis: RedisServer, node: NodeAndDiscovery
) -> None:
    tables: asyncio.Queue[scheduler_pb2.RouteTable] = asyncio.Queue()

    async def watch(client: SchedulerClient) -> None:
        async for table in client.watch_routes():
            await tables.put(table)

    async with SchedulerClient(f"unix:{directory}/scheduler.sock") as client:
        watching = asyncio.create_task(watch(client))
        for _ in range(2):
            async with scheduler(directory, redis.url, node):
                table = await asyncio.wait_for(tables.get(), timeout=60)
                assert next(route.model.name for route in table.routes) == "broken:latest"
            while not tables.empty():
                tables.get_nowait()
        watching.cancel()


async def test_a_slow_watcher_gets_the_newest_table_only(running: Running, node: NodeAndDiscovery) -> None:
    board = running.app.core.state
    tables = running.client.watch_routes()
    first = await anext(tables)
    await running.ensure("m")
    await running.ensure("n")
    await until(lambda: board.routes_version > first.version + 2, what="several versions came and went")
    async for table in tables:
        if table.version == board.routes_version:
            break
    else:
        raise AssertionError("the newest table never came")
    assert sum(len(route.replicas) for route in table.routes) == 2


class RunnerThatAnswers(runner_pb2_grpc.RunnerServicer):
    """A runner that outlives its host."""

    def __init__(self, placement: cluster_pb2.PlacementRef) -> None:
        self._placement = placement

    async def GetInfo(  # noqa: N802  # the name is the proto's
        self, request: runner_pb2.GetInfoRequest, context: Any
    ) -> runner_pb2.RunnerInfo:
        return runner_pb2.RunnerInfo(placement=self._placement)


@asynccontextmanager
async def runner_at(address: str, placement: cluster_pb2.PlacementRef) -> AsyncIterator[GrpcServer]:
    """A runner process, as far as questions about its identity go."""
    runner = RunnerThatAnswers(placement)  # type: ignore[abstract]  # nothing else is asked here
    server = bind_server(
        address, register=lambda one: runner_pb2_grpc.add_RunnerServicer_to_server(runner, one), services=[]
    )
    await server.start()
    try:
        yield server
    finally:
        await server.stop(0)


async def lose_host(running: Running, node: NodeAndDiscovery, address: str) -> Observed:
    """A model runs at `address`, and its host leaves the inventory."""
    observed = running.app.core.state.observed
    observed.policy = replace(observed.policy, node_lost_s=2.0, runner_asked_s=0.3)
    await running.ensure("m")
    (runner,) = node.runners.values()
    runner.record.address = address
    node.changes.notify()
    await until(lambda: any(one.address == address for _, one in observed.replicas()), what="its address is known")
    node.present = False
    node.changes.notify()
    await until(lambda: all(one.suspect for one in observed.nodes.values()), what="the node is missed")
    return observed


async def test_a_runner_whose_host_is_gone_stays_routed_while_it_answers_itself(
    directory: Path, running: Running, node: NodeAndDiscovery
) -> None:
    address = f"unix:{directory}/runner.sock"
    observed = await lose_host(running, node, address)
    (runner,) = node.runners.values()
    async with runner_at(address, runner.record.placement):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(4.5):
                await until(lambda: not observed.nodes, what="never: it answers")
        assert len(await running.placements("m")) == 1
        assert node.stops == []
    await until(lambda: not observed.nodes, deadline_s=20, what="nobody answers any more")
    assert await running.placements("m") == []


async def test_another_process_at_the_address_does_not_answer_for_a_runner(
    directory: Path, running: Running, node: NodeAndDiscovery
) -> None:
    address = f"unix:{directory}/runner.sock"
    other = cluster_pb2.PlacementRef(placement_id="somebody else", generation=1, incarnation="x")
    async with runner_at(address, other):
        observed = await lose_host(running, node, address)
        await until(lambda: not observed.nodes, deadline_s=20, what="the runner that was meant is gone")

"""A fence that no scheduler can have, sent to a real host or left by an older version, locks out no later leader."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from common.errors import InvalidRequest, ModelUnavailable
from protos import cluster_pb2, host_pb2, scheduler_pb2
from scheduler.client import SchedulerClient
from tests.integration.host.node import DEADLINE_S, Node, Service
from tests.redis_server import RedisServer
from tests.waiting import next_look

HIGHEST = 2**64 - 1
POISON = host_pb2.StopRequest(
    fence=host_pb2.Fence(number=HIGHEST, leader_id="evil"),
    placement=cluster_pb2.PlacementRef(placement_id="any", generation=1),
)


@pytest.fixture
async def redis() -> AsyncIterator[RedisServer]:
    directory = Path(tempfile.mkdtemp(prefix="puna-f-"))
    server = RedisServer(directory)
    await server.start()
    try:
        yield server
    finally:
        await server.kill()
        shutil.rmtree(directory)


@asynccontextmanager
async def running_scheduler(node: Node, redis: RedisServer) -> AsyncIterator[tuple[Service, SchedulerClient]]:
    listen = f"unix:{node.home}/scheduler.sock"
    service = await Service.start(
        "scheduler",
        environment={
            "PUNA_SCHEDULER_LISTEN": listen,
            "PUNA_DISCOVERY_ADDRESS": node.discovery_address,
            "PUNA_REDIS_URL": redis.url,
        },
    )
    try:
        await service.event("leadership.gained")
        async with SchedulerClient(listen) as client:
            yield service, client
    finally:
        await service.end()


async def load_and_unload(client: SchedulerClient) -> None:
    """Load the model anew and stop its replica: the host obeys this leader."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                request = scheduler_pb2.EnsureModelRequest(model_name="dense:latest")
                events = [event async for event in client.ensure_model(request)]
                break
            except ModelUnavailable:  # it has not seen the node yet
                await next_look()
        assert events[-1].WhichOneof("event") == "ready"
        assert await client.unload_model("dense:latest") == 1
        while any([route.replicas async for table in _first(client) for route in table.routes]):
            await next_look()


async def _first(client: SchedulerClient) -> AsyncIterator[scheduler_pb2.RouteTable]:
    async for table in client.watch_routes():
        yield table
        return


async def test_a_stop_with_the_highest_number_locks_out_no_leader(node: Node, redis: RedisServer) -> None:
    async with running_scheduler(node, redis) as (_, client):
        with pytest.raises(InvalidRequest, match=f"fence {HIGHEST} is more than a day ahead"):
            await node.client.stop(node.address, POISON)
        await load_and_unload(client)
    await node.host.end()
    await node.restart_host()
    async with running_scheduler(node, redis) as (_, client):
        await load_and_unload(client)


async def test_what_an_older_version_stored_after_such_a_stop_is_set_aside(node: Node, redis: RedisServer) -> None:
    await node.host.end()
    (node.home / "fence.json").write_text(f'{{"number":{HIGHEST},"leader_id":"evil"}}')
    async with redis.client() as store:
        await store.set("{sched}:fence", str(HIGHEST + 1))
    await node.restart_host()
    assert (await node.host.event("fence.set_aside"))["number"] == HIGHEST
    async with running_scheduler(node, redis) as (service, client):
        assert (await service.event("fence.set_aside"))["number"] == str(HIGHEST + 1)
        await load_and_unload(client)
        assert sum(event["event"] == "fence.set_aside" for event in service.events) == 1

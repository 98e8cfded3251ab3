"""Aliases over gRPC, with a real Redis and a node that keeps its contract."""

from pathlib import Path

import pytest
from redis import Redis

from common.errors import InvalidRequest, ModelNotFound
from protos import scheduler_pb2
from scheduler.client import SchedulerClient
from tests.integration.scheduler.node_servicer import NodeAndDiscovery
from tests.integration.scheduler.surroundings import Running
from tests.integration.scheduler.test_constraints_service import leads, successor
from tests.redis_server import RedisServer
from tests.waiting import until


async def told(client: SchedulerClient, *, until_known: bool = True) -> list[tuple[str, str]]:
    """The aliases of the next table that has any."""
    async for table in client.watch_routes():
        if table.HasField("aliases") or not until_known:
            return [(alias.name, alias.target) for alias in table.aliases.aliases]
    raise AssertionError("tables ended")


async def test_an_alias_reaches_gateways_outlives_its_leader_and_is_removed(
    running: Running, node: NodeAndDiscovery, redis: RedisServer, directory: Path
) -> None:
    await leads(running)
    await running.ensure("m")  # the inventory is there
    put = await running.client.put_alias("Fast", "m")
    assert put == scheduler_pb2.Alias(name="Fast:latest", target="m:latest")
    assert await told(running.client) == [("Fast:latest", "m:latest")]
    with pytest.raises(ModelNotFound):
        await running.client.put_alias("other", "nowhere")
    with pytest.raises(InvalidRequest, match="alias"):
        await running.client.put_alias("other", "fast")
    running.stop.set()
    async with successor(directory, redis, node) as other:
        assert await told(other.client) == [("Fast:latest", "m:latest")]
        assert await other.client.remove_alias("fast:latest")
        assert not await other.client.remove_alias("fast:latest")
        assert await told(other.client) == []


async def test_a_store_that_lost_everything_is_told_the_aliases_again(running: Running, redis: RedisServer) -> None:
    await leads(running)
    await running.ensure("m")
    await running.client.put_alias("fast", "m")
    with Redis.from_url(redis.url) as store:
        store.flushall()
        await until(lambda: bool(store.hexists("{sched}:aliases", "fast:latest")), what="it is written down again")
    assert await told(running.client) == [("fast:latest", "m:latest")]

"""Drain, undrain and remove over gRPC, with a real Redis and a node that keeps its contract."""

from pathlib import Path

import pytest

from common.errors import InvalidRequest, ModelUnavailable, PunaError
from tests.integration.scheduler.node_servicer import NodeAndDiscovery
from tests.integration.scheduler.surroundings import Running
from tests.integration.scheduler.test_constraints_service import leads, successor
from tests.redis_server import RedisServer
from tests.waiting import until

NODE = "node-a"


async def test_a_drained_node_gets_nothing_from_this_leader_nor_from_the_next(
    running: Running, node: NodeAndDiscovery, redis: RedisServer, directory: Path
) -> None:
    await leads(running)
    await running.ensure("m")
    left = await running.client.drain(NODE, budget_s=5)
    assert left == 1
    (shown,) = (await running.client.list_nodes()).nodes
    assert (shown.id, shown.draining) == (NODE, True)
    running.stop.set()
    async with successor(directory, redis, node) as other:
        (shown,) = (await other.client.list_nodes()).nodes
        assert shown.draining
        observed = other.app.core.state.observed
        await until(lambda: observed.was_seen and not list(observed.replicas()), what="what ran there has ended")
        with pytest.raises(ModelUnavailable, match="drained"):
            await other.ensure("m")
        await other.client.undrain(NODE)
        (shown,) = (await other.client.list_nodes()).nodes
        assert not shown.draining
        await other.ensure("m")


async def test_a_node_without_a_certificate_is_not_removed(running: Running) -> None:
    await leads(running)
    await running.ensure("m")
    with pytest.raises(InvalidRequest, match=f"node '{NODE}' shows no certificate .*; stop its host"):
        await running.client.remove_node(NODE, may_be_absent=False)


async def test_a_node_that_nobody_knows_is_named(running: Running) -> None:
    await leads(running)
    await running.ensure("m")  # the inventory is there
    with pytest.raises(PunaError, match="nowhere"):
        await running.client.drain("nowhere")

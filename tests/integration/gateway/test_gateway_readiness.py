"""Reasons in /readyz beside its status: the parts that are missing before a model can load."""

from dataclasses import dataclass, field
from typing import Any

from protos import cluster_pb2, discovery_pb2, scheduler_pb2
from tests.integration.gateway.conftest import Cluster, StartCluster
from tests.integration.gateway.scripted import ScriptedScheduler
from tests.waiting import Stopwatch, next_look


@dataclass(eq=False, kw_only=True)
class SchedulerOfNodes(ScriptedScheduler):
    """Its nodes are what a test says; counts who asks for them."""

    nodes: list[cluster_pb2.Node] = field(default_factory=list)
    asked: int = 0

    async def ListNodes(  # noqa: N802
        self, request: scheduler_pb2.ListNodesRequest, context: Any
    ) -> discovery_pb2.Inventory:
        self.asked += 1
        return discovery_pb2.Inventory(version=1, nodes=self.nodes)


def node(name: str, state: cluster_pb2.DeviceState.ValueType) -> cluster_pb2.Node:
    cpu = cluster_pb2.Device(id="cpu", type=cluster_pb2.DEVICE_TYPE_CPU, state=state)
    return cluster_pb2.Node(id=name, devices=[cpu])


async def is_told(cluster: Cluster, missing: str | None) -> None:
    """Returns once it is; what is known is a second old at most."""
    watch = Stopwatch()
    while True:
        answer = await cluster.http.get("/readyz")
        assert (answer.status_code, answer.json()["status"]) == (200, "ok")
        if answer.json().get("waits_for") == missing:
            return
        assert not watch.is_past(20), answer.json()
        await next_look()


async def test_a_gateway_that_admits_tells_that_no_node_knows_its_devices(start_cluster: StartCluster) -> None:
    scheduler = SchedulerOfNodes()
    async with start_cluster(scheduler=scheduler, warm=False) as cluster:
        await is_told(cluster, "a node")
        scheduler.nodes = [node("a", cluster_pb2.DEVICE_STATE_PROBING)]
        await is_told(cluster, "a node to know its devices")
        scheduler.nodes.append(node("b", cluster_pb2.DEVICE_STATE_OK))
        await is_told(cluster, None)


async def test_nobody_is_asked_where_something_is_loaded(start_cluster: StartCluster) -> None:
    scheduler = SchedulerOfNodes()
    async with start_cluster(scheduler=scheduler) as cluster:
        assert (await cluster.http.get("/readyz")).json() == {"status": "ok"}
        assert scheduler.asked == 0


async def test_a_dead_scheduler_is_named_and_makes_no_gateway_unready(start_cluster: StartCluster) -> None:
    async with start_cluster(warm=False) as cluster:
        await cluster.scheduler.stop()
        await is_told(cluster, "a scheduler that answers")

"""Parts that a cluster without replicas waits for, and the rate of calls to the scheduler."""

from typing import cast

import pytest

from common.clock import SystemClock
from common.errors import ModelUnavailable
from gateway.models.first_nodes import A_NODE, A_SCHEDULER, ITS_DEVICES, FirstNodes, missing_in
from protos import cluster_pb2, discovery_pb2
from scheduler.client import SchedulerClient

PROBING, OK, LOST = cluster_pb2.DEVICE_STATE_PROBING, cluster_pb2.DEVICE_STATE_OK, cluster_pb2.DEVICE_STATE_LOST


def inventory(*nodes: cluster_pb2.Node) -> discovery_pb2.Inventory:
    return discovery_pb2.Inventory(nodes=nodes)


def node(state: cluster_pb2.DeviceState.ValueType, *, suspect: bool = False) -> cluster_pb2.Node:
    return cluster_pb2.Node(devices=[cluster_pb2.Device(state=state)], suspect=suspect)


@pytest.mark.parametrize(
    ("nodes", "missing"),
    [
        ((), A_NODE),
        ((node(OK, suspect=True),), A_NODE),
        ((node(PROBING),), ITS_DEVICES),
        ((node(PROBING), node(PROBING), node(OK, suspect=True)), ITS_DEVICES),
        ((node(PROBING), node(OK)), ""),
        ((node(LOST),), ""),
    ],
)
def test_the_first_node_that_knows_its_devices_is_enough(nodes: tuple[cluster_pb2.Node, ...], missing: str) -> None:
    assert missing_in(inventory(*nodes)) == missing


class MovedClock(SystemClock):
    """Stands until it is moved."""

    time_s = 100.0

    def now_s(self) -> float:
        return self.time_s


class Asked:
    """A scheduler that counts."""

    def __init__(self) -> None:
        self.times = 0
        self.is_away = False

    async def list_nodes(self) -> discovery_pb2.Inventory:
        self.times += 1
        if self.is_away:
            raise ModelUnavailable("the scheduler cannot be reached")
        return inventory(node(PROBING))


async def test_the_scheduler_is_asked_once_a_second_however_many_ask_here() -> None:
    scheduler, clock = Asked(), MovedClock()
    first = FirstNodes(cast("SchedulerClient", scheduler), clock)
    assert [await first.missing() for _ in range(5)] == [ITS_DEVICES] * 5
    assert scheduler.times == 1
    clock.time_s += 1.0
    scheduler.is_away = True
    assert [await first.missing() for _ in range(5)] == [A_SCHEDULER] * 5
    assert scheduler.times == 2

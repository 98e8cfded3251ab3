"""What the scheduler shows of the inventory."""

import pytest

from common.clock import SystemClock
from protos import cluster_pb2, discovery_pb2
from scheduler.routes import RouteBoard


class MovedClock(SystemClock):
    time_s = 10.0

    def now_s(self) -> float:
        return self.time_s


@pytest.mark.behaviour("B-131", "B-139")
def test_devices_are_shown_with_what_is_promised_on_them_and_ages_as_of_now() -> None:
    clock = MovedClock()
    board = RouteBoard(clock)
    device = cluster_pb2.Device(id="GPU-1", total_bytes=100, free_bytes=60)
    received = discovery_pb2.Inventory(nodes=[cluster_pb2.Node(id="n", devices=[device], report_age_ms=200)])
    board.see_inventory(received)
    board.see_promises({("n", "GPU-1"): 40}, {("n", "GPU-1"): 7})
    clock.time_s += 1.5
    (node,) = board.inventory().nodes
    assert node.report_age_ms == 1700
    assert (node.devices[0].promised_bytes, node.devices[0].reserve_bytes) == (40, 7)
    # Decisions are made on what was received, and that stays as it came.
    assert received.nodes[0].devices[0] == device

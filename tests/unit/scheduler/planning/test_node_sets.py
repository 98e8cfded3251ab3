"""Models among more devices than a layout may name: those with most room are taken, of a node or of several."""

import pytest

from scheduler.core.planning.device_sets import DEVICES_MAX
from scheduler.core.values.constraints import Shape
from tests.unit.scheduler.builders import cpu, node
from tests.unit.scheduler.shape_planning import devices_of, engine, gpus, lender, placed

SMALL, LARGE = 4.0, 12.0
MODEL = engine(120.0)  # three layers fit on a large device, none on a small one


@pytest.mark.behaviour("B-72")
def test_of_three_nodes_the_roomiest_devices_are_taken_wherever_they_are() -> None:
    rooms = *[SMALL] * 3, *[LARGE] * 5
    found = placed(lender("a", *rooms), lender("b", *rooms), lender("c", *rooms), count=MODEL)
    assert found.shape is Shape.NODES
    assert {part.node_id for part in found.layout.devices} >= {"b", "c"}
    assert len(found.layout.devices) <= DEVICES_MAX
    assert {part.device_id for part in found.layout.devices} <= {f"g{index}" for index in range(3, 8)}


@pytest.mark.behaviour("B-72")
def test_of_a_node_with_more_devices_than_a_layout_names_the_roomiest_are_used() -> None:
    one = node("a", devices=(*gpus(*[SMALL] * 5, *[LARGE] * 12), cpu(free=8, total=8)))
    found = placed(one, count=MODEL)
    assert found.shape is Shape.ONE_NODE
    assert {device for device, _ in devices_of(found)} <= {f"g{index}" for index in range(5, 17)}

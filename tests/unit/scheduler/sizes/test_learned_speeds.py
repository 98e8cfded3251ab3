"""Devices are ranked by what replicas showed on them, equal ones stay equal, and the ranking keeps still."""

from dataclasses import replace
from random import Random

import pytest

from common.seen_inventory import Laid
from protos import cluster_pb2, discovery_pb2
from runner.core.devices.decode_speeds import DecodeSpeed, learn
from scheduler.converters import KnownNodes
from scheduler.core.sizes.ledger import available
from scheduler.core.sizes.speeds import like_speeds, likened, speed_classes
from scheduler.core.values.policy import Policy
from scheduler.core.values.view import DeviceView, NodeView, SpeedSource
from tests.unit.scheduler.builders import cpu, gpu, integrated, node
from tests.unit.scheduler.shape_planning import devices_of, engine, placed

GB = 1e9


def told(device: DeviceView, *, copy: float, replicas: float = 0.0, product: str = "a card") -> DeviceView:
    """The device with what its host knows of its speed, in GB/s."""
    source = SpeedSource.REPLICAS if replicas else SpeedSource.COPY if copy else SpeedSource.UNKNOWN
    speed = (replicas or copy) * GB
    return replace(device, speed_bytes_s=speed, copy_bytes_s=copy * GB, speed_source=source, description=product)


def seen_by_all(*nodes: NodeView) -> tuple[NodeView, ...]:
    like = like_speeds(nodes)
    return tuple(likened(one, like) for one in nodes)


def first_choice(*nodes: NodeView) -> str:
    return devices_of(placed(*seen_by_all(*nodes), count=engine(8)))[0][0]


def test_what_copies_fast_and_decodes_slowly_comes_after_what_decodes_faster() -> None:
    """By their copies it is the other way round, and what is slower has more room."""
    copies = told(gpu("copies", free=40, total=40), copy=900, product="one")
    decodes = told(gpu("decodes"), copy=500, product="other")
    assert first_choice(node(devices=(copies, decodes, cpu()))) == "copies"
    copies = told(copies, copy=900, replicas=150, product="one")
    decodes = told(decodes, copy=500, replicas=400, product="other")
    assert first_choice(node(devices=(copies, decodes, cpu()))) == "decodes"


def test_a_card_that_nobody_has_used_is_as_fast_as_its_equals() -> None:
    used = told(gpu("used", free=40, total=40), copy=900, replicas=550)
    fresh = told(gpu("fresh"), copy=880)
    assert first_choice(node(devices=(used, fresh, cpu()))) == "used", "the roomier one of two equal cards"
    (near, far) = seen_by_all(node("a", devices=(used,)), node("b", devices=(fresh,)))
    assert (far.devices[0].speed_bytes_s, far.devices[0].speed_source) == (550 * GB, SpeedSource.LIKE_DEVICES)
    assert near.devices[0].speed_source is SpeedSource.REPLICAS


def test_another_product_counts_for_what_its_kind_reaches_of_a_copy() -> None:
    used = told(gpu("used"), copy=1000, replicas=600)
    other = told(gpu("other"), copy=500, product="another card")
    (seen,) = seen_by_all(node(devices=(used, other, told(cpu(), copy=40, product="a CPU"))))
    by_id = {device.id: device for device in seen.devices}
    assert by_id["other"].speed_bytes_s == pytest.approx(300 * GB)
    assert by_id["cpu"].speed_source is SpeedSource.COPY, "no CPU has told"
    classes = speed_classes([(seen, by_id["used"]), (seen, by_id["other"])])
    assert classes == {("a", "used"): 0, ("a", "other"): 1}


def test_a_copy_that_was_timed_on_a_busy_machine_makes_no_other_device_faster() -> None:
    busy = told(cpu(), copy=5, replicas=13, product="a CPU")
    (_, idle) = seen_by_all(node("a", devices=(busy,)), node("b", devices=(told(cpu(), copy=20, product="a CPU"),)))
    assert idle.devices[0].speed_bytes_s == pytest.approx(20 * GB)


def test_what_is_behind_a_network_tells_nothing_of_others() -> None:
    near = replace(told(gpu("near"), copy=900, replicas=9), backend="RPC")
    far = replace(told(gpu("far"), copy=800), backend="RPC")
    (_, seen) = seen_by_all(node("a", devices=(near,)), node("b", devices=(far,)))
    assert seen.devices[0].speed_source is SpeedSource.COPY


def test_nodes_that_learn_nothing_from_others_are_the_same_objects() -> None:
    nodes = (node("a", devices=(told(gpu("x"), copy=900),)), node("b", devices=(told(gpu("y"), copy=0),)))
    assert [after is before for after, before in zip(seen_by_all(*nodes), nodes, strict=True)] == [True, True]


def test_an_explanation_has_the_speed_of_the_device_itself_where_its_pool_is_what_limits() -> None:
    lent = replace(told(integrated(), copy=80, replicas=60), backend="Vulkan")
    ram = told(cpu(free=4), copy=20)
    have = available(node(devices=(lent, ram)), lent, [], Policy())
    assert have.pool_id == "host"
    assert (have.speed_bytes_s, have.speed_source) == (60 * GB, SpeedSource.REPLICAS)
    have = available(node(devices=(lent, ram)), ram, [], Policy())
    assert (have.speed_bytes_s, have.speed_source) == (20 * GB, SpeedSource.COPY)


class Inventories:
    """Inventories of a scheduler, one after another."""

    def __init__(self) -> None:
        self._known, self._laid = KnownNodes(), Laid()

    def see(self, *nodes: cluster_pb2.Node, partial: bool = True) -> dict[str, NodeView]:
        message = discovery_pb2.Inventory(nodes=list(nodes), is_partial=partial)
        return {one.id: one for one in self._known.views(self._laid.take(message))[0]}


def reported(name: str, *, decode: float = 0) -> cluster_pb2.Node:
    card = cluster_pb2.Device(
        id=f"GPU-{name}",
        backend="CUDA",
        description="a card",
        type=cluster_pb2.DEVICE_TYPE_GPU,
        speed_bytes_s=round(900 * GB),
        decode_bytes_s=round(decode * GB),
    )
    return cluster_pb2.Node(id=name, devices=[card])


def test_a_silent_node_hears_of_what_others_showed_and_stays_as_it_is_otherwise() -> None:
    inventories = Inventories()
    first = inventories.see(reported("a"), reported("b"), partial=False)
    assert first["b"].devices[0].speed_source is SpeedSource.COPY
    second = inventories.see(reported("a", decode=600))
    assert (second["a"].devices[0].speed_bytes_s, second["b"].devices[0].speed_bytes_s) == (600 * GB, 600 * GB)
    third = inventories.see(reported("a", decode=600))
    assert third["b"] is second["b"]
    fourth = inventories.see(reported("a"))
    assert fourth["b"] is first["b"]


@pytest.mark.parametrize("seed", range(8))
def test_the_choice_between_equal_cards_keeps_still_whatever_disturbs_them(seed: int) -> None:
    """Three hundred hours of neighbours that come and go, and now and then a quiet moment."""
    chance = Random(seed)
    known = {"small": DecodeSpeed(), "large": DecodeSpeed()}
    choices = set()
    for hour in range(300):
        for name in ("small", "large"):
            windows = [(chance.uniform(0.1, 0.95), chance.random() < 0.8) for _ in range(6)]
            if hour % 10 == 0:
                windows.append((chance.uniform(0.97, 1.0), True))
            for share, alone in windows:
                known[name] = learn(known[name], 600 * GB * share, hour=hour, alone=alone)
        if hour >= 10:
            cards = [
                told(gpu(name, free=size, total=size), copy=900, replicas=known[name].shown_bytes_s / GB)
                for name, size in (("small", 24), ("large", 40))
            ]
            choices.add(first_choice(node(devices=(*cards, cpu()))))
    assert choices == {"large"}

"""Clusters that the bench of placement plans on: 1,000 nodes of 8 devices, and what real ones add to that.

A real cluster has several products of cards, speeds that replicas showed on each device, other models that are loaded
and decode, tenants that may use some of the nodes, and operators who name devices.
"""

from collections.abc import Iterator
from dataclasses import replace

from scheduler.core.planning.candidates import ClusterView
from scheduler.core.sizes.eviction import Evictable
from scheduler.core.sizes.ledger import Promise
from scheduler.core.values.memory import GIB
from scheduler.core.values.view import DeviceView, NodeView, SpeedSource
from tests.unit.scheduler.builders import cpu, gpu, node

NODES = 1000
DEVICES = 8
# Name, GiB, GB/s of the products; each node has two of them, as machines that were extended have.
PRODUCTS = (("A", 24, 1008.0), ("B", 48, 960.0), ("C", 24, 936.0), ("D", 16, 448.0), ("E", 80, 2039.0))
SLOWEST_OF_PRODUCT = 0.85  # what steps showed on the slowest device, as a part of the fastest of its product
EVERY_LOADED = 3  # one device of so many has another model on it, and half of these decode
LOADED_GIB = 6


def cluster(*, used_gib: float) -> ClusterView:
    """1,000 nodes of 8 devices, all with the file, no two equally full."""
    nodes = []
    for number in range(NODES):
        devices = [
            replace(
                gpu(f"gpu-{number}-{index}", total=24), free_bytes=int((24 - used_gib) * GIB) - number * 4096 - index
            )
            for index in range(DEVICES)
        ]
        nodes.append(node(f"node-{number:04}", devices=(*devices, cpu())))
    return ClusterView(nodes=tuple(nodes))


def lending(view: ClusterView) -> ClusterView:
    """Return the same cluster with all of its nodes lending."""
    return replace(view, nodes=tuple(replace(one, rpc_enabled=True) for one in view.nodes))


def known_cluster(*, used_gib: float) -> ClusterView:
    """Devices of five products, each as fast as its replicas showed, one in three with another model on it."""
    nodes = tuple(_mixed_node(number, used_gib) for number in range(NODES))
    loaded = list(_loaded(nodes))
    promises = (
        Promise(
            placement_id=f"p-{owner.id}-{device.id}",
            node_id=owner.id,
            device_bytes={device.id: LOADED_GIB * GIB},
            starting=False,
            freed_bytes={device.id: LOADED_GIB * GIB},
        )
        for owner, device in loaded
    )
    evictable = (
        Evictable(
            placement_id=f"p-{owner.id}-{device.id}",
            idle_s=100,
            pool_bytes={(owner.id, device.pool_id): LOADED_GIB * GIB},
        )
        for owner, device in loaded[1::2]
    )
    decoding = {(owner.id, device.id): 0.25 + number % 4 * 0.5 for number, (owner, device) in enumerate(loaded[::2])}
    return ClusterView(nodes=nodes, promises=tuple(promises), evictable=tuple(evictable), decoding=decoding)


def _mixed_node(number: int, used_gib: float) -> NodeView:
    devices = []
    for index in range(DEVICES):
        product, total_gib, gigabytes_s = PRODUCTS[(number + (index >= DEVICES // 2)) % len(PRODUCTS)]
        place = (number * DEVICES + index) * 7919 % 1000 / 1000  # no two alike, the same in every run
        speed = gigabytes_s * 1e9 * (1 - (1 - SLOWEST_OF_PRODUCT) * place)
        free = int((total_gib - used_gib) * GIB) - number * 4096 - index
        if _is_loaded(number, index):
            free -= LOADED_GIB * GIB
        devices.append(
            replace(
                gpu(f"gpu-{number}-{index}", total=total_gib),
                description=f"product {product}",
                free_bytes=max(0, free),
                speed_bytes_s=speed,
                speed_source=SpeedSource.REPLICAS,
            )
        )
    host = cpu()
    host = replace(host, free_bytes=host.free_bytes - number * 4096, speed_bytes_s=40e9, speed_source=SpeedSource.COPY)
    return node(f"node-{number:04}", devices=(*devices, host))


def _is_loaded(number: int, index: int) -> bool:
    return (number * DEVICES + index) % EVERY_LOADED == 0


def _loaded(nodes: tuple[NodeView, ...]) -> Iterator[tuple[NodeView, DeviceView]]:
    for number, one in enumerate(nodes):
        for index, device in enumerate(one.devices[:DEVICES]):
            if _is_loaded(number, index):
                yield one, device

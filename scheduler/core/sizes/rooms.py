"""Available bytes of every device of a snapshot, computed once and only on demand."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from scheduler.core.sizes.eviction import PoolKey
from scheduler.core.sizes.ledger import NO_PLACEMENTS, Available, Need, Promise, available, pool_available, pools_of
from scheduler.core.sizes.speeds import OwnedDevice
from scheduler.core.sizes.splitting import DeviceKey
from scheduler.core.values.policy import Policy
from scheduler.core.values.view import DeviceView, NodeView

FIGURES_STALE_S = 2.0  # older figures are discounted by BACKOFF_STEP
BACKOFF_STEP = 0.1  # fraction of the free bytes

PLACES = "#replicas"  # a pool of every node: how many replicas it may have


@dataclass(slots=True, kw_only=True)
class Rooms:
    """Cache of the rooms of a snapshot; it changes no answer."""

    policy: Policy
    promises: Iterable[Promise]
    backoff: Mapping[DeviceKey, float] = field(default_factory=dict)  # where allocations have failed
    _by_node: dict[str, list[Promise]] | None = None
    _known: dict[tuple[str, str, frozenset[str]], Available] = field(default_factory=dict)
    _pools: dict[tuple[str, str, frozenset[str]], Available | None] = field(default_factory=dict)

    def on(self, node: NodeView, device: DeviceView, without: frozenset[str] = NO_PLACEMENTS) -> Available:
        """Return the room of a device as if the placements `without` were gone."""
        key = (node.id, device.id, without)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = available(
                node,
                device,
                self.of_node(node.id),
                self.policy,
                without=without,
                backoff=self.backoff_on(node, device),
            )
        return known

    def of_need(self, need: Need, nodes: Mapping[str, NodeView]) -> Available:
        """Return the room of a need's device as it is."""
        return self.on(*device_of(need, nodes))

    def of_pool(self, node: NodeView, pool_id: str, without: frozenset[str] = NO_PLACEMENTS) -> Available | None:
        """Return the common room of all devices of a pool."""
        key = (node.id, pool_id, without)
        if key not in self._pools:
            keeper = next((device for device in node.devices if device.pool_id == pool_id), None)
            backoff = self.backoff_on(node, keeper) if keeper is not None else 0.0
            self._pools[key] = pool_available(
                node, pool_id, self.of_node(node.id), self.policy, without=without, backoff=backoff
            )
        return self._pools[key]

    def backoff_on(self, node: NodeView, device: DeviceView) -> float:
        """Return the part of the free bytes that is left alone: an allocation failed here, or the figure is stale."""
        part = self.backoff.get((node.id, device.id), 0.0)
        if device.free_age_s + node.report_age_s > FIGURES_STALE_S:
            part += BACKOFF_STEP
        return part

    def of_node(self, node_id: str) -> list[Promise]:
        """Return the promises on a node."""
        if self._by_node is None:
            self._by_node = {}
            for promise in self.promises:
                self._by_node.setdefault(promise.node_id, []).append(promise)
        return self._by_node.get(node_id, [])

    def short_pools(
        self, needs: Iterable[Need], nodes: Mapping[str, NodeView], without: frozenset[str] = NO_PLACEMENTS
    ) -> dict[PoolKey, int]:
        """Return the bytes that each pool lacks for these needs: per device, or for a pool's devices together."""
        lacking: dict[PoolKey, int] = {}
        wanted: dict[PoolKey, int] = {}
        for need in needs:
            node, device = device_of(need, nodes)
            if (short := need.total_bytes - self.on(node, device, without).available_bytes) > 0:
                lacking[node.id, device.pool_id] = max(short, lacking.get((node.id, device.pool_id), 0))
            for pool_id in pools_of(device):
                wanted[node.id, pool_id] = wanted.get((node.id, pool_id), 0) + need.total_bytes
        for (node_id, pool_id), count in wanted.items():
            pool = self.of_pool(nodes[node_id], pool_id, without)
            if pool is not None and (short := count - pool.available_bytes) > 0:
                lacking[node_id, pool_id] = max(short, lacking.get((node_id, pool_id), 0))
        for node_id in {node_id for node_id, _ in wanted}:
            if (short := self._too_many(node_id, without)) > 0:
                lacking[node_id, PLACES] = short
        return lacking

    def _too_many(self, node_id: str, without: frozenset[str]) -> int:
        """Return the number of replicas beyond the operator's hard count."""
        if not self.policy.loaded_models_max:
            return 0
        here = (promise for promise in self.of_node(node_id) if not promise.is_measurement)
        staying = sum(1 for promise in here if promise.placement_id not in without)
        return staying + 1 - self.policy.loaded_models_max


def device_of(figures: Need | Available, nodes: Mapping[str, NodeView]) -> OwnedDevice:
    """Return the device that figures are about, with its node."""
    node = nodes[figures.node_id]
    device = node.device(figures.device_id)
    assert device is not None, "figures name devices of their node"
    return node, device

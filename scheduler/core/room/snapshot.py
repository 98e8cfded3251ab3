"""Snapshot for a plan: an immutable view of the cluster.

Loads that fetch to one node share the room in its store, as devices are shared.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from common.spec.layout import Layout
from scheduler.core.planning.candidates import ClusterView
from scheduler.core.planning.device_sets import LOADS_PER_NODE_MAX
from scheduler.core.room.evictable import evictable
from scheduler.core.sizes.eviction import Evictable, PoolKey
from scheduler.core.state.cluster_state import ClusterState
from scheduler.core.state.device_load import decoding
from scheduler.core.state.load_jobs import DONE, UNPLACED, LoadJob
from scheduler.core.state.promises import promises
from scheduler.core.state.shared_files import keeping_of
from scheduler.core.values.origins import has_model, model_file
from scheduler.core.values.view import STARTING_STATES, NodeView


class LazyEvictable:
    """Replicas that may be evicted, found when they are first looked at; the state must not change before."""

    def __init__(self, find: Callable[[], Iterable[Evictable]]) -> None:
        self._find = find
        self._found: tuple[Evictable, ...] | None = None

    def __iter__(self) -> Iterator[Evictable]:
        if self._found is None:
            self._found = tuple(self._find())
        return iter(self._found)


def cluster_view(state: ClusterState, now_s: float, *, job: LoadJob, measurements: bool = True) -> ClusterView:
    """Return the snapshot for the plan of a load; without `measurements` as if the running ones were over."""
    pools, per_node = _loads_elsewhere(state, job)
    return ClusterView(
        nodes=state.observed.node_views(now_s),
        promises=tuple(promises(state, but_for=job, measurements=measurements)),
        evictable=LazyEvictable(lambda: evictable(state, job, now_s)),
        loading_pools=frozenset(pools),
        loads_per_node=per_node,
        pinned=_pinned(state, job),
        drained=frozenset(state.drains),
        margins=state.margins,
        decoding=decoding(state),
    )


def _pinned(state: ClusterState, job: LoadJob) -> frozenset[str]:
    """Return the replicas that no load evicts; a larger replica of the same model may replace its own."""
    if not state.constraints and not state.file_constraints:
        return frozenset()
    return frozenset(
        runner.placement_id
        for _, runner in state.observed.replicas()
        if runner.model_digest != job.model_digest and keeping_of(state, runner).pinned
    )


def _loads_elsewhere(state: ClusterState, job: LoadJob) -> tuple[set[PoolKey], dict[str, int]]:
    """Return the places of other loads: pools of devices, and the number per node."""
    pools: set[PoolKey] = set()
    per_node: dict[str, int] = {}
    known = {other.record.placement_id for other in state.jobs.values() if other.record is not None}
    for other in state.jobs.values():
        if other is job or other.placement is None or other.state in UNPLACED:
            continue
        per_node[other.placement.node_id] = per_node.get(other.placement.node_id, 0) + 1
        pools.update(_device_pools(state, other.placement.node_id, other.placement.layout))
    for node_id, runner in state.observed.replicas():
        if runner.state in STARTING_STATES and runner.placement_id not in known:
            # Another load whose needs are not known: nothing beside it until it is.
            per_node[node_id] = LOADS_PER_NODE_MAX
            pools.update(_device_pools(state, node_id, runner.layout))
    return pools, per_node


def _device_pools(state: ClusterState, node_id: str, layout: Layout) -> set[PoolKey]:
    pools: set[PoolKey] = set()
    for layers in layout.devices:
        owner_id = layers.node_id or node_id
        device = state.device(owner_id, layers.device_id)
        if device is not None:
            pools.add((owner_id, device.pool_id))
    return pools


def without_promised_room(nodes: Iterable[NodeView], state: ClusterState, job: LoadJob) -> tuple[NodeView, ...]:
    """Return the nodes with the room in their stores that the fetches of other loads leave."""
    promised = _promised(state, job)
    if not promised:
        return tuple(nodes)
    return tuple(
        replace(node, models_free_bytes=max(0, node.models_free_bytes - promised[node.id]))
        if node.id in promised
        else node
        for node in nodes
    )


def _promised(state: ClusterState, job: LoadJob) -> dict[str, int]:
    """Return the bytes that are still to be fetched, by node. Loads of one model fetch it once."""
    to_come: dict[tuple[str, str], int] = {}
    for other in state.jobs.values():
        if other is job or other.placement is None or other.state in DONE or other.model_digest == job.model_digest:
            continue
        key = other.placement.node_id, other.model_digest
        to_come[key] = max(to_come.get(key, 0), _to_come(state, other))
    promised: dict[str, int] = {}
    for (node_id, _), count in to_come.items():
        promised[node_id] = promised.get(node_id, 0) + count
    return {node_id: count for node_id, count in promised.items() if count}


def _to_come(state: ClusterState, job: LoadJob) -> int:
    """Return the bytes that a load has yet to fetch; the node's room already lacks the fetched ones."""
    assert job.placement is not None, "asked of loads with a place"
    node, layout = state.node(job.placement.node_id), job.placement.layout
    if node is None:
        return 0
    count = 0
    for digest, projector in ((job.model_digest, layout.projector_digest), (layout.draft_digest, "")):
        if digest and not has_model(node, digest, projector):
            known = (model_file(other, digest, projector) for other in state.observed.nodes.values())
            count += next((file.fetched_bytes for file in known if file is not None), 0)
    return round(count * (1.0 - job.attempt.fetch_fraction))

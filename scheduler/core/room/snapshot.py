"""What a plan is made on: the books turned into an immutable view of the cluster."""

from scheduler.core.books.books import Books
from scheduler.core.books.device_load import decoding
from scheduler.core.books.load_jobs import UNPLACED, LoadJob
from scheduler.core.books.promises import promises
from scheduler.core.books.shared_files import keeping_of
from scheduler.core.planning.candidates import ClusterView
from scheduler.core.room.evictable import evictable
from scheduler.core.sizes.eviction import PoolKey
from scheduler.core.values.layouts import Layout
from scheduler.core.values.lazily import Lazily
from scheduler.core.values.view import STARTING_STATES


def cluster_view(books: Books, now_s: float, *, job: LoadJob, measurements: bool = True) -> ClusterView:
    """The snapshot on which a load is planned; without `measurements` as if those that run were over."""
    pools, per_node = _loads_elsewhere(books, job)
    return ClusterView(
        nodes=books.observed.node_views(now_s),
        promises=tuple(promises(books, but_for=job, measurements=measurements)),
        evictable=Lazily(lambda: evictable(books, job, now_s)),
        loading_pools=frozenset(pools),
        loads_per_node=per_node,
        pinned=_pinned(books, job),
        drained=frozenset(books.drains),
        margins=books.margins,
        decoding=decoding(books),
    )


def _pinned(books: Books, job: LoadJob) -> frozenset[str]:
    """Replicas that stay whoever waits; a larger one of the same model takes the place of its own."""
    if not books.constraints and not books.file_constraints:
        return frozenset()
    return frozenset(
        runner.placement_id
        for _, runner in books.observed.replicas()
        if runner.model_digest != job.model_digest and keeping_of(books, runner).pinned
    )


def _loads_elsewhere(books: Books, job: LoadJob) -> tuple[set[PoolKey], dict[str, int]]:
    """Where other loads run: pools of devices, and how many per node."""
    pools: set[PoolKey] = set()
    per_node: dict[str, int] = {}
    known = {other.record.placement_id for other in books.jobs.values() if other.record is not None}
    for other in books.jobs.values():
        if other is job or other.placement is None or other.state in UNPLACED:
            continue
        per_node[other.placement.node_id] = per_node.get(other.placement.node_id, 0) + 1
        pools.update(_device_pools(books, other.placement.node_id, other.placement.layout))
    for node_id, runner in books.observed.replicas():
        if runner.state in STARTING_STATES and runner.placement_id not in known:
            # Somebody else's load, and what it will take is not known: nothing beside it until it is.
            per_node[node_id] = books.policy.loads_per_node_max
            pools.update(_device_pools(books, node_id, runner.layout))
    return pools, per_node


def _device_pools(books: Books, node_id: str, layout: Layout) -> set[PoolKey]:
    pools: set[PoolKey] = set()
    for layers in layout.devices:
        owner = books.node(layers.node_id or node_id)
        device = owner.device(layers.device_id) if owner is not None else None
        if owner is not None and device is not None:
            pools.add((owner.id, device.pool_id))
    return pools

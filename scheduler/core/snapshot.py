"""What a plan is made on: the books turned into an immutable view of the cluster."""

from collections.abc import Iterator

from scheduler.core.books import Books
from scheduler.core.candidates import ClusterView
from scheduler.core.eviction import Evictable, PoolKey
from scheduler.core.layouts import Layout
from scheduler.core.ledger import Promise, freed_by, reserve_bytes
from scheduler.core.load_jobs import DONE, UNPLACED, LoadJob
from scheduler.core.view import STARTING_STATES, RunnerState, RunnerView


def promises(books: Books, *, but_for: LoadJob | None = None) -> Iterator[Promise]:
    """Everything that is promised now: loaded, loading, reserved for a load that evicts, and not yet come back."""
    named = set()
    for job in books.jobs_by_age():
        if job is but_for or job.placement is None or job.state in DONE:
            continue
        name = f"load:{job.id}" if job.record is None else job.record.placement_id
        named.add(name)
        needs = {need.device_id: 0 for need in job.placement.needs}
        for need in job.placement.needs:
            needs[need.device_id] += need.total_bytes
        yield Promise(placement_id=name, node_id=job.placement.node_id, device_bytes=needs, starting=True)
    for stop in books.stops.values():
        if stop.placement_id not in named:
            named.add(stop.placement_id)
            yield stop.promise
    for node_id, runner in books.observed.replicas():
        if runner.placement_id not in named and runner.state is not RunnerState.ERROR:
            named.add(runner.placement_id)
            yield replica_promise(books, node_id, runner)


def replica_promise(books: Books, node_id: str, runner: RunnerView) -> Promise:
    """What a running replica holds: the larger of plan and report, and what every process takes on a device."""
    node = books.node(node_id)
    host = node.host_device if node is not None else None
    record = books.desired.get(runner.placement_id)
    counted: dict[str, int] = {}
    for report in (runner.memory, record.planned if record is not None else None):
        if report is None:
            continue
        parts = [(part.device_id, part.total_bytes) for part in report.devices]
        if host is not None:
            parts.append((host.id, report.host.total_bytes))
        for device_id, count in parts:
            counted[device_id] = max(counted.get(device_id, 0), count)
    for device_id in counted:
        device = node.device(device_id) if node is not None else None
        counted[device_id] += reserve_bytes(device, books.policy) if device is not None else 0
    return Promise(
        placement_id=runner.placement_id,
        node_id=node_id,
        device_bytes=counted,
        starting=runner.state in STARTING_STATES,
        freed_bytes=freed_by(runner.layout, runner.memory, host.id if host is not None else ""),
    )


def cluster_view(books: Books, now_s: float, *, job: LoadJob) -> ClusterView:
    """The snapshot on which a load is planned."""
    pools, per_node = _loads_elsewhere(books, job)
    return ClusterView(
        nodes=books.observed.node_views(now_s),
        promises=tuple(promises(books, but_for=job)),
        evictable=tuple(_evictable(books, job, now_s)),
        loading_pools=frozenset(pools),
        loads_per_node=per_node,
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
    node = books.node(node_id)
    found = [node.device(layers.device_id) if node is not None else None for layers in layout.devices]
    return {(node_id, device.pool_id) for device in found if device is not None}


def _evictable(books: Books, job: LoadJob, now_s: float) -> Iterator[Evictable]:
    """Idle replicas that may go for this load."""
    policy = books.policy
    loading = {other.record.placement_id for other in books.jobs.values() if other.record is not None}
    replaced_s = books.replaced_at_s.get(job.model_digest)
    cooling = replaced_s is not None and now_s < replaced_s + policy.reload_cooldown_s
    for node_id, runner in books.observed.replicas():
        memo = books.memos.get(runner.placement_id)
        if memo is None or runner.placement_id in books.stops or runner.placement_id in loading:
            continue
        if memo.idle_since_s is None or now_s < memo.ready_since_s + policy.dwell_s_min:
            continue
        if memo.awaits_request(runner, now_s, policy.dwell_s_min) or not books.observed.is_current(node_id):
            continue
        if runner.model_digest == job.model_digest and cooling:
            continue
        yield Evictable(
            placement_id=runner.placement_id,
            idle_s=memo.idle_s(now_s),
            kept_for_ever=memo.keep_alive_ms(runner, policy.keep_alive_ms) < 0,
            pool_bytes=_pool_bytes(books, node_id, runner),
        )


def _pool_bytes(books: Books, node_id: str, runner: RunnerView) -> dict[PoolKey, int]:
    node = books.node(node_id)
    pools: dict[PoolKey, int] = {}
    for device_id, count in replica_promise(books, node_id, runner).device_bytes.items():
        device = node.device(device_id) if node is not None else None
        if device is not None:
            key = (node_id, device.pool_id)
            pools[key] = pools.get(key, 0) + count
    return pools

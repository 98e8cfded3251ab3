"""Which replicas may go for a load, and what each of them costs."""

from collections import Counter
from collections.abc import Iterator

from scheduler.core.books import Books
from scheduler.core.eviction import Evictable, PoolKey
from scheduler.core.keep_cost import loss_of_replica
from scheduler.core.load_jobs import LoadJob
from scheduler.core.model_constraints import constraints_of
from scheduler.core.promises import replica_promise
from scheduler.core.view import DeviceKind, RunnerView


def evictable(books: Books, job: LoadJob, now_s: float) -> Iterator[Evictable]:
    """Idle replicas that may go for this load."""
    for node_id, runner, spare in spare_replicas(books, job, now_s):
        memo = books.memos[runner.placement_id]
        if is_used(books, runner, now_s):
            continue
        yield Evictable(
            placement_id=runner.placement_id,
            idle_s=memo.idle_s(now_s),
            loss=loss_of_replica(books, runner, now_s),
            pool_bytes=pool_bytes(books, node_id, runner),
            model=runner.model_digest,
            spare=spare,
        )


def spare_replicas(books: Books, job: LoadJob, now_s: float) -> Iterator[tuple[str, RunnerView, int]]:
    """Replicas that nobody keeps, idle or not, with how many of their model may go.

    A larger one of the same model takes their place, pinned or not; one more beside them does not.
    """
    replaced_s = books.replaced_at_s.get(job.model_digest)
    is_cooling = replaced_s is not None and now_s < replaced_s + books.policy.reload_cooldown_s
    loading = {other.record.placement_id for other in books.jobs.values() if other.record is not None}
    found = [
        (node_id, runner)
        for node_id, runner in books.observed.replicas()
        if runner.placement_id in books.memos
        and runner.placement_id not in books.stops
        and runner.placement_id not in loading
    ]
    serving = Counter(runner.model_digest for _, runner in found)
    for node_id, runner in found:
        if not books.observed.is_current(node_id):
            continue
        spare = serving[runner.model_digest]
        if runner.model_digest == job.model_digest:
            spare = 0 if job.is_extra or is_cooling else spare
        else:
            constraints = constraints_of(books, runner.model_name)
            spare = 0 if constraints.pinned else spare - constraints.replicas_min
        if spare > 0:
            yield node_id, runner, spare


def is_used(books: Books, runner: RunnerView, now_s: float) -> bool:
    """Whether a sequence runs, is on its way, or may be: a replica that was just loaded was loaded for somebody."""
    memo, policy = books.memos[runner.placement_id], books.policy
    if memo.idle_since_s is None or now_s < memo.ready_since_s + policy.dwell_s_min:
        return True
    return memo.awaits_request(runner, now_s, policy.dwell_s_min)


def pool_bytes(books: Books, node_id: str, runner: RunnerView) -> dict[PoolKey, int]:
    """The most by which pools gain when it goes; without host RAM where most of it lies on devices."""
    node = books.node(node_id)
    pools: dict[PoolKey, int] = {}
    on_host: dict[PoolKey, int] = {}
    for device_id, count in replica_promise(books, node_id, runner).device_bytes.items():
        device = node.device(device_id) if node is not None else None
        if device is None or count == 0:
            continue
        kind = on_host if device.kind is DeviceKind.CPU else pools
        key = (node_id, device.pool_id)
        kind[key] = kind.get(key, 0) + count
    if sum(on_host.values()) >= sum(pools.values()):
        for key, count in on_host.items():
            pools[key] = pools.get(key, 0) + count
    return pools

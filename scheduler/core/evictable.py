"""Which replicas may go for a load, and what each of them costs."""

from collections import Counter
from collections.abc import Iterator

from scheduler.core.books import Books
from scheduler.core.eviction import Evictable, PoolKey
from scheduler.core.keep_cost import loss_of_replica
from scheduler.core.load_jobs import LoadJob
from scheduler.core.model_constraints import constraints_of
from scheduler.core.promises import replica_promises
from scheduler.core.view import DeviceKind, RunnerView

# How much less a replica in its first moments must be worth, for a load to wait for it.
WORTH_WAITING_FACTOR = 2.0


def evictable(books: Books, job: LoadJob, now_s: float) -> Iterator[Evictable]:
    """Idle replicas that may go for this load.

    One in its first moments may not go yet. If it is worth much less than an idle one, that stays too: to wait for some
    seconds is better than to throw out what is asked for all the time, and to load it again a moment later.
    """
    idle: list[Evictable] = []
    soon: list[Evictable] = []
    for node_id, runner, spare in spare_replicas(books, job, now_s):
        kind = soon if is_young(books, runner, now_s) else idle
        if kind is idle and is_used(books, runner, now_s):
            continue
        kind.append(
            Evictable(
                placement_id=runner.placement_id,
                idle_s=books.memos[runner.placement_id].idle_s(now_s),
                loss=loss_of_replica(books, runner, now_s),
                pool_bytes=pool_bytes(books, node_id, runner),
                model=runner.model_digest,
                spare=spare,
            )
        )
    for one in idle:
        if not any(_is_worth_waiting_for(other, one) for other in soon):
            yield one


def _is_worth_waiting_for(young: Evictable, idle: Evictable) -> bool:
    enough = sum(young.pool_bytes.values()) >= sum(idle.pool_bytes.values())
    return enough and young.loss * WORTH_WAITING_FACTOR <= idle.loss


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


def is_young(books: Books, runner: RunnerView, now_s: float) -> bool:
    """Whether it was just loaded, and for somebody."""
    return now_s < books.memos[runner.placement_id].ready_since_s + books.policy.dwell_s_min


def is_used(books: Books, runner: RunnerView, now_s: float) -> bool:
    """Whether a sequence runs, or is on its way."""
    memo = books.memos[runner.placement_id]
    return memo.idle_since_s is None or memo.awaits_request(runner, now_s, books.policy.dwell_s_min)


def pool_bytes(books: Books, node_id: str, runner: RunnerView) -> dict[PoolKey, int]:
    """The most by which pools gain when it goes; without host RAM where most of it lies on devices."""
    pools: dict[PoolKey, int] = {}
    on_host: dict[PoolKey, int] = {}
    for promise in replica_promises(books, node_id, runner):
        node = books.node(promise.node_id)
        for device_id, count in promise.device_bytes.items():
            device = node.device(device_id) if node is not None else None
            if device is None or count == 0:
                continue
            kind = on_host if device.kind is DeviceKind.CPU else pools
            key = (promise.node_id, device.pool_id)
            kind[key] = kind.get(key, 0) + count
    if sum(on_host.values()) >= sum(pools.values()):
        for key, count in on_host.items():
            pools[key] = pools.get(key, 0) + count
    return pools

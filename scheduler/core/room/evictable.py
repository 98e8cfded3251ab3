"""Which replicas may go for a load, and what each of them costs."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf

from scheduler.core.books.books import Books, StopState
from scheduler.core.books.growth import may_replace
from scheduler.core.books.load_jobs import ON_HOST, LoadJob
from scheduler.core.books.promises import replica_promises
from scheduler.core.books.shared_files import keeping_of, keeping_on
from scheduler.core.room.keep_cost import held_bytes, loss_of_model, loss_of_replica
from scheduler.core.sizes.eviction import Evictable, PoolKey
from scheduler.core.values.demand import NO_DEMAND, reload_s
from scheduler.core.values.view import DeviceKind, RunnerView

# How much less a replica that may not go yet must be worth than an idle one, for a load to wait for it. Forecasts are
# not more exact than that.
WORTH_WAITING_FACTOR = 1.3
# And for so many reloads of the idle one: beside its first moments, longer than that a load never waits for another.
WAIT_RELOADS = 2.0
# So many of those that may go soon are compared with every idle one, the cheapest of them.
SOON_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class _Soon:
    """What may go before long: a replica that answers, one in its first moments, or one that loads."""

    loss: float
    freed_bytes: int
    free_at_s: float


def evictable(books: Books, job: LoadJob, now_s: float) -> Iterator[Evictable]:
    """Idle replicas that may go for this load, and those that go anyway: to wait for them costs nothing.

    One that loads, that answers, or that is in its first moments may not go yet. If it is worth much less than an idle
    one, the idle one stays too, for a while: to wait for some seconds is better than to throw out what is asked for all
    the time, and to load it again a moment later.
    """
    yield from _leaving(books)
    idle: list[tuple[Evictable, float]] = []
    soon: list[_Soon] = []
    waits = now_s < job.created_s + books.policy.starve_s
    for node_id, runner, spare in spare_replicas(books, job, now_s):
        free_at_s = books.memos[runner.placement_id].ready_since_s + books.policy.dwell_s_min
        may_go = now_s >= free_at_s and not is_used(books, runner, now_s)
        if not may_go and not (waits and _could_lie_on(books, job, node_id)):
            continue
        loss, pools = loss_of_replica(books, runner, now_s), pool_bytes(books, node_id, runner)
        if not may_go:
            soon.append(_Soon(loss=loss, freed_bytes=sum(pools.values()), free_at_s=max(now_s, free_at_s)))
            continue
        one = Evictable(
            placement_id=runner.placement_id,
            idle_s=books.memos[runner.placement_id].idle_s(now_s),
            loss=loss,
            pool_bytes=pools,
            model=runner.model_digest,
            spare=spare,
        )
        idle.append((one, job.created_s + _patience_s(books, runner)))
    if waits and idle:
        soon = sorted([*soon, *_loading(books, job, now_s)], key=lambda one: one.loss)[:SOON_MAX]
    for one, until_s in idle:
        if now_s >= until_s or not any(_is_worth_waiting_for(other, one, until_s) for other in soon):
            yield one


def _leaving(books: Books) -> Iterator[Evictable]:
    """Who serves nobody any more and has been told to stop: its memory is back in a moment, whoever wants it."""
    for stop in books.stops.values():
        if stop.state is StopState.DRAINING or stop.has_failed or not books.observed.is_current(stop.node_id):
            continue
        held = ((one.node_id, device, count) for one in stop.held for device, count in one.device_bytes.items())
        yield Evictable(placement_id=stop.placement_id, idle_s=inf, loss=0.0, pool_bytes=_by_pool(books, held))


def _is_worth_waiting_for(soon: _Soon, idle: Evictable, until_s: float) -> bool:
    is_cheaper = soon.loss * WORTH_WAITING_FACTOR <= idle.loss
    return is_cheaper and soon.freed_bytes >= sum(idle.pool_bytes.values()) and soon.free_at_s <= until_s


def _patience_s(books: Books, runner: RunnerView) -> float:
    """How long a load waits at most for another one to go in place of this one."""
    reload = reload_s(books.demand.get(runner.model_digest, NO_DEMAND), held_bytes(runner))
    return min(books.policy.dwell_s_min + WAIT_RELOADS * reload, books.policy.starve_s)


def _loading(books: Books, job: LoadJob, now_s: float) -> Iterator[_Soon]:
    """Other loads on their way: when their first moments will be over, as far as earlier loads tell."""
    for other in books.jobs.values():
        placement = other.placement
        if other is job or placement is None:
            continue
        wishes = keeping_on(books, placement.node_id, other.model_name, other.model_digest)
        if wishes.pinned or wishes.replicas_min:
            continue
        if other.model_digest == job.model_digest or not _could_lie_on(books, job, placement.node_id):
            continue
        needs = [(need.node_id or placement.node_id, need.device_id, need.total_bytes) for need in placement.needs]
        demand = books.demand.get(other.model_digest, NO_DEMAND)
        held = placement.report.total_bytes
        begun_s = other.started_s if other.state in ON_HOST else now_s
        yield _Soon(
            loss=loss_of_model(books, wishes, other.model_digest, now_s, held=held),
            freed_bytes=sum(_by_pool(books, needs).values()),
            free_at_s=max(now_s, begun_s + reload_s(demand, held)) + books.policy.dwell_s_min,
        )


def _could_lie_on(books: Books, job: LoadJob, node_id: str) -> bool:
    node = books.node(node_id)
    return node is not None and node.model(job.model_digest) is not None and node_id not in job.failed_nodes


def spare_replicas(books: Books, job: LoadJob, now_s: float) -> Iterator[tuple[str, RunnerView, int]]:
    """Replicas that nobody keeps, idle or not, with how many of their model may go.

    A larger one of the same model takes their place, pinned or not; one more beside them does not.
    """
    is_cooling = not may_replace(books, job.model_digest, now_s)
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
            wishes = keeping_of(books, runner)
            spare = 0 if wishes.pinned else spare - wishes.replicas_min
        if spare > 0:
            yield node_id, runner, spare


def is_used(books: Books, runner: RunnerView, now_s: float) -> bool:
    """Whether a sequence runs, or is on its way."""
    memo = books.memos[runner.placement_id]
    return memo.idle_since_s is None or memo.awaits_request(runner, now_s, books.policy.dwell_s_min)


def pool_bytes(books: Books, node_id: str, runner: RunnerView) -> dict[PoolKey, int]:
    """The most by which pools gain when it goes; without host RAM where most of it lies on devices."""
    return _by_pool(
        books,
        (
            (promise.node_id, device_id, count)
            for promise in replica_promises(books, node_id, runner)
            for device_id, count in promise.device_bytes.items()
        ),
    )


def _by_pool(books: Books, held: Iterable[tuple[str, str, int]]) -> dict[PoolKey, int]:
    """`held` has node, device and bytes."""
    pools: dict[PoolKey, int] = {}
    on_host: dict[PoolKey, int] = {}
    for node_id, device_id, count in held:
        node = books.node(node_id)
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

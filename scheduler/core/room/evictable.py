"""Replicas that may be evicted for a load, and the cost of each."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf

from scheduler.core.room.keep_cost import held_bytes, loss_of_model, loss_of_replica
from scheduler.core.sizes.eviction import Evictable, PoolKey
from scheduler.core.state.cluster_state import ClusterState, StopState
from scheduler.core.state.growth import may_replace
from scheduler.core.state.load_jobs import ON_HOST, LoadJob
from scheduler.core.state.promises import replica_promises
from scheduler.core.state.shared_files import keeping_of, keeping_on
from scheduler.core.values.demand import reload_s
from scheduler.core.values.view import DeviceKind, RunnerView

STARVE_S = 30.0  # a load that only busy replicas keep waiting for so long drains the cheapest
DWELL_S_MIN = 10.0  # first moments of a replica, in which no load evicts it

# How much less a replica that may not go yet must be worth than an idle one, for a load to wait for it. Forecasts are
# not more exact than that.
WORTH_WAITING_FACTOR = 1.3
# And for so many reloads of the idle one: beside its first moments, longer than that a load never waits for another.
WAIT_RELOADS = 2.0
# So many of those that may go soon are compared with every idle one, the cheapest of them.
SOON_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class _Soon:
    """Replicas that may be evictable soon: one that answers, one in its first moments, or one that loads."""

    loss: float
    freed_bytes: int
    free_at_s: float


def evictable(state: ClusterState, job: LoadJob, now_s: float) -> Iterator[Evictable]:
    """Yield idle replicas that may be evicted for this load, and those with a stop under way, which cost nothing.

    One that loads, that answers, or that is in its first moments may not go yet. If it is worth much less than an idle
    one, the idle one stays too, for a while: to wait for some seconds is better than to throw out what is asked for all
    the time, and to load it again a moment later.
    """
    yield from _leaving(state)
    idle: list[tuple[Evictable, float]] = []
    soon: list[_Soon] = []
    waits = now_s < job.created_s + STARVE_S
    for node_id, runner, spare in spare_replicas(state, job, now_s):
        free_at_s = state.tracked[runner.placement_id].ready_since_s + DWELL_S_MIN
        may_go = now_s >= free_at_s and not is_used(state, runner, now_s)
        if not may_go and not (waits and _could_lie_on(state, job, node_id)):
            continue
        loss, pools = loss_of_replica(state, runner, now_s), pool_bytes(state, node_id, runner)
        if not may_go:
            soon.append(_Soon(loss=loss, freed_bytes=sum(pools.values()), free_at_s=max(now_s, free_at_s)))
            continue
        one = Evictable(
            placement_id=runner.placement_id,
            idle_s=state.tracked[runner.placement_id].idle_s(now_s),
            loss=loss,
            pool_bytes=pools,
            model=runner.model_digest,
            spare=spare,
        )
        idle.append((one, job.created_s + _patience_s(state, runner)))
    if waits and idle:
        soon = sorted([*soon, *_loading(state, job, now_s)], key=lambda one: one.loss)[:SOON_MAX]
    for one, until_s in idle:
        if now_s >= until_s or not any(_is_worth_waiting_for(other, one, until_s) for other in soon):
            yield one


def _leaving(state: ClusterState) -> Iterator[Evictable]:
    """Yield idle replicas with a stop under way: their memory is free in a moment, for any load."""
    for stop in state.stops.values():
        if stop.state is StopState.DRAINING or stop.has_failed or not state.observed.is_current(stop.node_id):
            continue
        held = ((one.node_id, device, count) for one in stop.held for device, count in one.device_bytes.items())
        yield Evictable(placement_id=stop.placement_id, idle_s=inf, loss=0.0, pool_bytes=_by_pool(state, held))


def _is_worth_waiting_for(soon: _Soon, idle: Evictable, until_s: float) -> bool:
    is_cheaper = soon.loss * WORTH_WAITING_FACTOR <= idle.loss
    return is_cheaper and soon.freed_bytes >= sum(idle.pool_bytes.values()) and soon.free_at_s <= until_s


def _patience_s(state: ClusterState, runner: RunnerView) -> float:
    """Return the longest wait of a load for another one to be evicted in place of this one."""
    reload = reload_s(state.models[runner.model_digest].demand, held_bytes(runner))
    return min(DWELL_S_MIN + WAIT_RELOADS * reload, STARVE_S)


def _loading(state: ClusterState, job: LoadJob, now_s: float) -> Iterator[_Soon]:
    """Yield other loads with the end of their first moments, as far as earlier loads predict it."""
    for other in state.jobs.values():
        placement = other.placement
        if other is job or placement is None:
            continue
        constraints = keeping_on(state, placement.node_id, other.model_name, other.model_digest)
        if constraints.pinned or constraints.replicas_min:
            continue
        if other.model_digest == job.model_digest or not _could_lie_on(state, job, placement.node_id):
            continue
        needs = [(need.node_id, need.device_id, need.total_bytes) for need in placement.needs]
        held = placement.report.total_bytes
        begun_s = other.attempt.sent_s if other.state in ON_HOST else now_s
        yield _Soon(
            loss=loss_of_model(state, constraints, other.model_digest, now_s, held=held),
            freed_bytes=sum(_by_pool(state, needs).values()),
            free_at_s=max(now_s, begun_s + reload_s(state.models[other.model_digest].demand, held)) + DWELL_S_MIN,
        )


def _could_lie_on(state: ClusterState, job: LoadJob, node_id: str) -> bool:
    node = state.node(node_id)
    return node is not None and node.model(job.model_digest) is not None and node_id not in job.failed.nodes


def spare_replicas(state: ClusterState, job: LoadJob, now_s: float) -> Iterator[tuple[str, RunnerView, int]]:
    """Return the replicas without a reason to stay, idle or not, with the number that their model can spare.

    A larger one of the same model takes their place, pinned or not; one more beside them does not.
    """
    is_cooling = not may_replace(state, job.model_digest, now_s)
    loading = {other.record.placement_id for other in state.jobs.values() if other.record is not None}
    found = [
        (node_id, runner)
        for node_id, runner in state.observed.replicas()
        if runner.placement_id in state.tracked
        and runner.placement_id not in state.stops
        and runner.placement_id not in loading
    ]
    serving = Counter(runner.model_digest for _, runner in found)
    for node_id, runner in found:
        if not state.observed.is_current(node_id):
            continue
        spare = serving[runner.model_digest]
        if runner.model_digest == job.model_digest:
            spare = 0 if job.is_extra or is_cooling else spare
        else:
            constraints = keeping_of(state, runner)
            spare = 0 if constraints.pinned else spare - constraints.replicas_min
        if spare > 0:
            yield node_id, runner, spare


def is_used(state: ClusterState, runner: RunnerView, now_s: float) -> bool:
    """Return True if a sequence runs, or is on its way."""
    tracked = state.tracked[runner.placement_id]
    return tracked.idle_since_s is None or tracked.awaits_request(runner, now_s, DWELL_S_MIN)


def pool_bytes(state: ClusterState, node_id: str, runner: RunnerView) -> dict[PoolKey, int]:
    """Return the most that each pool gains by a stop; without host RAM if most of the replica is on devices."""
    return _by_pool(
        state,
        (
            (promise.node_id, device_id, count)
            for promise in replica_promises(state, node_id, runner)
            for device_id, count in promise.device_bytes.items()
        ),
    )


def _by_pool(state: ClusterState, held: Iterable[tuple[str, str, int]]) -> dict[PoolKey, int]:
    """Sum bytes by pool. `held` has node, device and bytes."""
    pools: dict[PoolKey, int] = {}
    on_host: dict[PoolKey, int] = {}
    for node_id, device_id, count in held:
        device = state.device(node_id, device_id)
        if device is None or count == 0:
            continue
        kind = on_host if device.kind is DeviceKind.CPU else pools
        key = (node_id, device.pool_id)
        kind[key] = kind.get(key, 0) + count
    if sum(on_host.values()) >= sum(pools.values()):
        for key, count in on_host.items():
            pools[key] = pools.get(key, 0) + count
    return pools

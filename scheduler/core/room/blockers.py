"""Blockers of a load that lacks bytes: shown beside the numbers, and preempted if the load waits too long."""

from collections.abc import Iterable
from dataclasses import replace

from scheduler.core.planning.candidates import Candidate, MeasureFirst, Placement, Refusal, Verdict
from scheduler.core.room.evictable import DWELL_S_MIN, is_used, pool_bytes, spare_replicas
from scheduler.core.room.keep_cost import loss_of_replica
from scheduler.core.sizes.eviction import PoolKey
from scheduler.core.state.cluster_state import ClusterState
from scheduler.core.state.load_jobs import LoadJob
from scheduler.core.state.shared_files import keeping_of
from scheduler.core.stopping.stopping import order_stop
from scheduler.core.values.memory import bytes_text
from scheduler.core.values.view import SERVING_STATES, RunnerView

CANDIDATES_MAX = 32  # that are explained; more would not be read
NAMES_MAX = 8

Outcome = Placement | MeasureFirst | Refusal
_KINDS = ("busy", "just loaded", "pinned", "kept", "going")


def with_blockers(state: ClusterState, job: LoadJob, outcome: Outcome, now_s: float) -> Outcome:
    """Add the blockers of each device that lacks bytes, and why they cannot be evicted, to a decision."""
    if isinstance(outcome, MeasureFirst):
        return outcome
    explained = 0
    candidates: list[Candidate] = []
    for candidate in outcome.candidates:
        text = ""
        if candidate.verdict is Verdict.SHORT_BYTES and candidate.needs and explained < CANDIDATES_MAX:
            explained += 1
            text = _text(state, job, candidate, now_s)
        reason = "; ".join(part for part in (candidate.reason, text) if part)
        candidates.append(replace(candidate, reason=reason) if text else candidate)
    return replace(outcome, candidates=tuple(candidates)) if explained else outcome


def holders(state: ClusterState, refusal: Refusal) -> list[str]:
    """Return the models whose replicas are in the pools that lack bytes."""
    short = _short_pools(state, refusal.candidates[:CANDIDATES_MAX])
    return [
        runner.model_name
        for node_id, runner in state.observed.replicas()
        if any(count and pool in short for pool, count in pool_bytes(state, node_id, runner).items())
    ]


def preempt_cheapest(state: ClusterState, job: LoadJob, refusal: Refusal, now_s: float) -> None:
    """Order one replica to drain, if none does so already; never one that is pinned, or that must be kept."""
    if any(stop.reason == "starved" for stop in state.stops.values()):
        return
    short = _short_pools(state, refusal.candidates)
    priced: list[tuple[float, str]] = []
    for node_id, runner, _ in spare_replicas(state, job, now_s):
        useful = sum(count for pool, count in pool_bytes(state, node_id, runner).items() if pool in short)
        if useful > 0:
            priced.append((loss_of_replica(state, runner, now_s) / useful, runner.placement_id))
    if priced:
        order_stop(state, min(priced)[1], reason="starved", now_s=now_s)


def _text(state: ClusterState, job: LoadJob, candidate: Candidate, now_s: float) -> str:
    short = _short_pools(state, (candidate,))
    spare = {runner.placement_id for _, runner, _ in spare_replicas(state, job, now_s)}
    idle: list[str] = []
    others: dict[str, list[str]] = {}
    for node_id, runner in state.observed.replicas():
        held = sum(count for pool, count in pool_bytes(state, node_id, runner).items() if pool in short)
        if not held or runner.state not in SERVING_STATES:
            continue
        kind = _kind(state, runner, now_s, is_spare=runner.placement_id in spare)
        if kind:
            others.setdefault(kind, []).append(runner.model_name)
        else:
            idle.append(f"{runner.model_name} ({bytes_text(held)})")
    named = [(kind, others[kind]) for kind in _KINDS if kind in others]
    return "; ".join(
        [
            *([f"evicting {_list(idle)} is not enough"] if idle else []),
            *(f"{_list(names)} {'is' if len(names) == 1 else 'are'} {kind}" for kind, names in named),
        ]
    )


def _kind(state: ClusterState, runner: RunnerView, now_s: float, *, is_spare: bool) -> str:
    """Return the reason why a replica is not evicted for a load; empty: it would be."""
    if runner.placement_id in state.stops:
        return "going"
    if keeping_of(state, runner).pinned:
        return "pinned"
    if runner.placement_id not in state.tracked or is_used(state, runner, now_s):
        return "busy"
    if not is_spare:
        return "kept"
    is_young = now_s < state.tracked[runner.placement_id].ready_since_s + DWELL_S_MIN
    return "just loaded" if is_young else ""


def _short_pools(state: ClusterState, candidates: Iterable[Candidate]) -> frozenset[PoolKey]:
    """Return the pools that have too little room for the candidates."""
    pools: set[PoolKey] = set()
    for candidate in candidates:
        if candidate.verdict is not Verdict.SHORT_BYTES:
            continue
        for need, have in zip(candidate.needs, candidate.available, strict=False):
            device = state.device(need.node_id, need.device_id)
            if device is not None and need.total_bytes > have.available_bytes:
                pools.add((need.node_id, device.pool_id))
    return frozenset(pools)


def names_text(names: Iterable[str]) -> str:
    """Return each name once, as text."""
    return _list(list(set(names)))


def _list(names: list[str]) -> str:
    shown = sorted(names)[:NAMES_MAX]
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    return ", ".join(shown) + more

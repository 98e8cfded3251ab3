"""Nodes that operators take out of use: written down before it counts, kept by every leader until it is undone.

Nothing new is placed there, or lent from there. What runs there goes: first a replica elsewhere takes its place, if
there is room for one without eviction; then it takes nothing new, and ends as soon as slots elsewhere are free for its
sequences, which go on there. Without such slots it ends when its sequences have, or when the drain's budget is over.
"""

from collections.abc import Mapping

from scheduler.core.loading.requests import begin_load
from scheduler.core.planning.lending import nodes_of
from scheduler.core.state.cluster_state import ClusterState, LeaderTerm, NodeDrain, lost_keys
from scheduler.core.state.effects import AnswerReplicas, SaveDrain
from scheduler.core.state.events import DrainAsked
from scheduler.core.state.load_jobs import LoadState
from scheduler.core.state.replicas import serving_replicas
from scheduler.core.state.shared_files import keeping_of
from scheduler.core.stopping.stopping import order_stop
from scheduler.core.values.faults import node_not_found
from scheduler.core.values.view import SERVING_STATES, RunnerView

NODE_DRAIN_S = 300.0  # so long sequences may go on on a node that is drained, unless a command sets another time

REASON = "drain"


def take_over(state: ClusterState, stored: Mapping[str, float], fence: int, now_s: float) -> None:
    """Take the drains of the store as a new leader; write those of this process that the store has lost."""
    if state.leadership is None:
        state.drains = {node_id: NodeDrain(since_s=now_s, budget_s=budget_s) for node_id, budget_s in stored.items()}
        return
    own = {node_id: drain.budget_s for node_id, drain in state.drains.items()}
    for node_id in lost_keys(own, stored):
        state.emit(SaveDrain(fence=fence, caller_id="", node_id=node_id, budget_s=own.get(node_id)))


def ask(state: ClusterState, event: DrainAsked, term: LeaderTerm) -> None:
    """Order the save of a drain. A node that is gone can still be undrained."""
    if state.node(event.node_id) is None and event.node_id not in state.drains:
        state.refuse(event.caller_id, node_not_found(event.node_id))
    else:
        budget_s = NODE_DRAIN_S if event.budget_s is None else event.budget_s
        state.emit(
            SaveDrain(
                fence=term.fence,
                caller_id=event.caller_id,
                node_id=event.node_id,
                budget_s=budget_s if event.drain else None,
            )
        )


def on_saved(state: ClusterState, save: SaveDrain, now_s: float) -> None:
    """Apply a drain that the store has saved."""
    was_drained = save.node_id in state.drains
    if save.budget_s is None:
        state.drains.pop(save.node_id, None)
    else:
        since_s = state.drains[save.node_id].since_s if was_drained else now_s
        state.drains[save.node_id] = NodeDrain(since_s=since_s, budget_s=save.budget_s)
        _plan_elsewhere(state, save.node_id, now_s)
    if was_drained != (save.budget_s is not None):
        state.note("node.drained" if save.budget_s is not None else "node.undrained", node=save.node_id)
    state.emit(
        AnswerReplicas(
            caller_id=save.caller_id,
            replicas=replicas_left(state, save.node_id),
        )
    )


def replicas_left(state: ClusterState, node_id: str) -> int:
    """Count the replicas that run on a node, or on devices that it lends."""
    return sum(1 for owner, runner in state.observed.replicas() if node_id in nodes_of(owner, runner.layout))


def replicas_on_drained(state: ClusterState) -> dict[str, int]:
    """Return the number of replicas left, by node."""
    return {node_id: replicas_left(state, node_id) for node_id in state.drains}


def advance_drains(state: ClusterState, now_s: float) -> None:
    """Take every drain as far as it comes now."""
    if not state.drains or state.leadership is None:
        return
    loading = {job.record.placement_id for job in state.jobs.values() if job.record is not None}
    for owner, runner in list(state.observed.replicas()):
        drains = [(one, state.drains[one]) for one in nodes_of(owner, runner.layout) if one in state.drains]
        is_served = runner.state in SERVING_STATES and runner.placement_id in state.tracked
        if not drains or not is_served or runner.placement_id in loading:
            continue
        is_over = any(now_s >= drain.over_s for _, drain in drains)
        forced = is_over or _takes_sequences(state, runner)
        if runner.placement_id in state.stops:
            if forced:
                order_stop(state, runner.placement_id, reason=REASON, now_s=now_s, forced=True)
        elif is_over or all(_has_gone_elsewhere(state, drain, runner, now_s) for _, drain in drains):
            order_stop(state, runner.placement_id, reason=REASON, now_s=now_s, forced=forced)


def _elsewhere(state: ClusterState, digest: str) -> list[RunnerView]:
    """List the serving replicas of a model that no drained node has a part in."""
    serving = serving_replicas(state, digest)
    return [one for owner, one in serving if not nodes_of(owner, one.layout) & state.drains.keys()]


def _takes_sequences(state: ClusterState, runner: RunnerView) -> bool:
    """Return True if a replica has sequences that can move at once: as many slots are free elsewhere."""
    free = sum(max(0, one.slots_total - one.slots_busy) for one in _elsewhere(state, runner.model_digest))
    return 0 < runner.slots_busy + runner.queued <= free


def _has_gone_elsewhere(state: ClusterState, drain: NodeDrain, runner: RunnerView, now_s: float) -> bool:
    """Return True if there is nothing to wait for: enough replicas serve elsewhere, or there is no room for them."""
    digest = runner.model_digest
    if len(_elsewhere(state, digest)) >= max(1, keeping_of(state, runner).replicas_min):
        return True
    if any(job.model_digest == digest for job in state.jobs.values()):
        return False
    model = state.model_named(runner.model_name)
    if digest in drain.tried or model is None or model.error:
        return True
    drain.tried.add(digest)
    begin_load(state, model, now_s=now_s, is_extra=True, may_evict=False, reason=REASON)
    return False


def _plan_elsewhere(state: ClusterState, node_id: str, now_s: float) -> None:
    """Plan replacements on other nodes. A drain that is still being stored has not begun."""
    for job in state.jobs_by_age():
        record = job.record
        if job.state is LoadState.PLANNED and record and node_id in nodes_of(record.node_id, record.layout):
            job.plan_again(now_s, pause_s=0.0)

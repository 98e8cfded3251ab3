"""Desired number of replicas of each model, and the loads and stops that follow.

- `replicas_min` are kept: what is missing is loaded again, wherever there is room.
- `preload` is loaded once, as soon as a node has the file.
- Requests that wait too long for a slot bring one replica more, up to `replicas_max`, if there is room without
  eviction. Such a one goes again by its own keep_alive.
No caller waits for these loads: one that fails is tried again after the model's pause.
"""

from collections.abc import Mapping

from scheduler.core.loading.requests import begin_load
from scheduler.core.state.cluster_state import NO_FAILURES, ClusterState
from scheduler.core.state.model_constraints import constrained_models, constraints_of
from scheduler.core.state.replicas import serving_replicas
from scheduler.core.values.constraints import Constraints
from scheduler.core.values.routing_table import find_model
from scheduler.core.values.view import ModelFile

SCALE_UP_WAIT_S = 5.0  # a request that waits longer for a slot is one too many
SCALE_UP_AFTER_S = 15.0  # for so long, before there is another replica

# After so long without news of a gateway, its figures are not used any more.
QUEUE_FORGOTTEN_S = 5.0
# How long a scale-up that found no room is not tried again.
SCALE_PAUSE_S = 15.0


def keep_replicas(state: ClusterState, now_s: float) -> None:
    """Begin the loads that are missing. Not before every node had time to register: what it runs is not missing."""
    if state.leadership is None or not state.observed.is_complete:
        return
    nodes = tuple(state.observed.nodes.values())
    for name in constrained_models(state):
        model = find_model(nodes, name)
        if model is not None and not model.error:
            _keep(state, model, constraints_of(state, name), now_s)
    for name in sorted(state.waits_since_s):
        model = find_model(nodes, name)
        if model is not None and not model.error:
            _scale_up(state, model, now_s)


def _keep(state: ClusterState, model: ModelFile, constraints: Constraints, now_s: float) -> None:
    have, serving = replica_count(state, model.digest), sum(1 for _ in serving_replicas(state, model.digest))
    known = state.models[model.digest]
    preloads = constraints.preload and model.name not in state.preloaded
    wanted = max(constraints.replicas_min, 1 if preloads else 0)
    if serving >= wanted:
        known.keep_failures = NO_FAILURES
    if have < wanted and (known.failures.blocks(now_s) or known.keep_failures.blocks(now_s)):
        return
    if preloads:
        state.preloaded.add(model.name)
    if have < wanted:
        reason = "replicas_min" if have < constraints.replicas_min else "preload"
        begin_load(state, model, now_s=now_s, is_extra=have > 0, reason=reason)


def replica_count(state: ClusterState, digest: str) -> int:
    """Count the replicas that serve, and the loads that will make one."""
    serving = {runner.placement_id for _, runner in serving_replicas(state, digest)}
    loading = [one for one in state.jobs.values() if one.model_digest == digest]
    return len(serving) + len(loading)


def see_queues(state: ClusterState, gateway_id: str, waits_s: Mapping[str, float], now_s: float) -> None:
    """Apply a gateway's report of its waiting requests."""
    state.queue_waits[gateway_id] = (now_s, waits_s)
    follow_queues(state, now_s)


def follow_queues(state: ClusterState, now_s: float) -> None:
    """Remember since when each model's requests have waited too long."""
    for gateway_id in [one for one, (at_s, _) in state.queue_waits.items() if now_s >= at_s + QUEUE_FORGOTTEN_S]:
        del state.queue_waits[gateway_id]
    worst: dict[str, float] = {}
    for at_s, waits_s in state.queue_waits.values():
        for name, wait_s in waits_s.items():
            worst[name] = max(worst.get(name, 0.0), wait_s + (now_s - at_s))
    slow = {name for name, wait_s in worst.items() if wait_s > SCALE_UP_WAIT_S}
    for name in list(state.waits_since_s):
        if name not in slow:
            del state.waits_since_s[name]
    for name in slow:
        state.waits_since_s.setdefault(name, now_s)


def _scale_up(state: ClusterState, model: ModelFile, now_s: float) -> None:
    constraints = constraints_of(state, model.name)
    since_s = state.waits_since_s[model.name]
    have, known = replica_count(state, model.digest), state.models[model.digest]
    if have == 0 or have >= constraints.replicas_max or now_s < since_s + SCALE_UP_AFTER_S:
        return
    if known.failures.blocks(now_s) or now_s < known.scale_paused_until_s:
        return
    known.scale_paused_until_s = now_s + SCALE_PAUSE_S
    begin_load(state, model, now_s=now_s, is_extra=True, may_evict=False, reason="queue_wait")

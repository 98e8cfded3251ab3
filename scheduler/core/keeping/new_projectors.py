"""Replicas without the projector that lies beside their model now: one is loaded with it, then they go.

Until that one serves, they answer what is text; a busy one ends its sequences first. Where there is no room they stay.
"""

from scheduler.core.loading.requests import begin_load
from scheduler.core.planning.projectors import current_projector
from scheduler.core.state.cluster_state import ClusterState, ModelState
from scheduler.core.state.model_constraints import constraints_of
from scheduler.core.state.replicas import serving_replicas
from scheduler.core.stopping.stopping import order_stop

REASON = "projector"
# After so long it is tried again.
PAUSE_S = 30.0


def follow_projectors(state: ClusterState, now_s: float) -> None:
    """Take every such change as far as it comes now."""
    observed = state.observed
    if not observed.was_seen or observed.is_young or observed.frozen_since_s is not None:
        return
    for digest in sorted({runner.model_digest for _, runner in observed.replicas()}):
        if projector := current_projector(observed.nodes.values(), digest):
            _follow(state, digest, projector, now_s)


def _follow(state: ClusterState, digest: str, projector: str, now_s: float) -> None:
    serving = [runner for _, runner in serving_replicas(state, digest)]
    others = [runner for runner in serving if runner.layout.projector_digest != projector]
    if not others:
        return
    model = next(file for node in state.observed.nodes.values() if (file := node.model(digest)) is not None)
    if model.error:
        return
    if len(serving) - len(others) >= max(1, constraints_of(state, model.name).replicas_min):
        for runner in others:
            order_stop(state, runner.placement_id, reason=REASON, now_s=now_s)
    elif not any(job.model_digest == digest for job in state.jobs.values()) and _may_load(state.models[digest], now_s):
        state.models[digest].projector_tried_s = now_s
        begin_load(state, model, now_s=now_s, is_extra=True, reason=REASON)


def _may_load(known: ModelState, now_s: float) -> bool:
    return not known.failures.blocks(now_s) and now_s >= known.projector_tried_s + PAUSE_S

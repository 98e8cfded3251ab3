"""Replicas that lie where an operator does not want them any more: one is loaded in the right place, then they go.

Until that one serves, they do; a busy one ends its sequences first. Where there is no room they stay.
"""

from collections.abc import Iterator

from scheduler.core.loading.requests import begin_load
from scheduler.core.state.cluster_state import ClusterState
from scheduler.core.state.model_constraints import constrained_models, constraints_of, load_constraints
from scheduler.core.state.replicas import serving_replicas
from scheduler.core.stopping.stopping import order_stop
from scheduler.core.values.constraints import Constraints, device_obstacle, node_obstacle, unmatched
from scheduler.core.values.routing_table import find_model
from scheduler.core.values.view import DeviceView, ModelFile, NodeView, RunnerView

REASON = "constraints"
# After so long a move is tried again.
MOVE_PAUSE_S = 30.0


def move_misplaced(state: ClusterState, now_s: float) -> None:
    """Take every move as far as it comes now."""
    if not state.observed.was_seen or state.observed.is_young or state.observed.frozen_since_s is not None:
        return
    nodes = tuple(state.observed.nodes.values())
    for name in constrained_models(state):
        constraints = constraints_of(state, name)
        where = Constraints(nodes=constraints.nodes, devices=constraints.devices, backend=constraints.backend)
        model = find_model(nodes, name) if where != Constraints() else None
        if model is not None and not model.error:
            _move(state, model, where, now_s)


def _move(state: ClusterState, model: ModelFile, where: Constraints, now_s: float) -> None:
    serving = list(serving_replicas(state, model.digest))
    misplaced = [runner for node_id, runner in serving if _is_misplaced(state, node_id, runner, where)]
    if not misplaced:
        return
    constraints = constraints_of(state, model.name)
    if len(serving) - len(misplaced) >= max(1, constraints.replicas_min):
        for runner in misplaced:
            order_stop(state, runner.placement_id, reason=REASON, now_s=now_s)
    elif not any(job.model_digest == model.digest for job in state.jobs.values()) and _may_load(state, model, now_s):
        state.models[model.digest].move_tried_s = now_s
        begin_load(state, model, now_s=now_s, is_extra=True, reason=REASON)


def _may_load(state: ClusterState, model: ModelFile, now_s: float) -> bool:
    """Return False soon after the last try: there may be no room, or constraints and requests may conflict."""
    known = state.models[model.digest]
    if known.failures.blocks(now_s) or now_s < known.move_tried_s + MOVE_PAUSE_S:
        return False
    return not unmatched(load_constraints(state, model.name), state.observed.nodes.values())


def _is_misplaced(state: ClusterState, head_id: str, runner: RunnerView, where: Constraints) -> bool:
    """Return True if a new placement would not use the replica's node, or a node that lends to it."""
    head = state.node(head_id)
    if head is None:
        return False
    if node_obstacle(where, head):
        return True
    return any(device_obstacle(where, node, device) for node, device in _devices(state, head, runner))


def _devices(state: ClusterState, head: NodeView, runner: RunnerView) -> Iterator[tuple[NodeView, DeviceView]]:
    """Yield every device of a placement with its node. An unknown device violates no constraint."""
    for part in runner.layout.devices:
        owner = state.node(part.node_id) if part.node_id else head
        device = owner.device(part.device_id) if owner is not None else None
        if owner is not None and device is not None:
            yield owner, device
    if not runner.layout.devices and head.host_device is not None:
        yield head, head.host_device

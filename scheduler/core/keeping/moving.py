"""Replicas that operators or files have outdated: one is loaded as it should be, then they go.

They lie where an operator does not want them any more, or lack the projector that lies beside their model now. Or they
share a node although another one could take them: it was out of use when they were loaded. Until the new one serves,
they do (without a projector, what is text); a busy one ends its sequences first. Where there is no room they stay.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import inf

from scheduler.core.loading.loading import plan_load
from scheduler.core.loading.requests import begin_load, imagined_load
from scheduler.core.planning.candidates import Placement, Refusal
from scheduler.core.planning.projectors import current_projectors
from scheduler.core.state.cluster_state import ClusterState, ModelState
from scheduler.core.state.model_constraints import constrained_models, constraints_of, load_constraints, load_target
from scheduler.core.state.replicas import serving_replicas
from scheduler.core.stopping.stopping import order_stop
from scheduler.core.values.asked import NOTHING_ASKED
from scheduler.core.values.constraints import Constraints, device_obstacle, node_obstacle, unmatched
from scheduler.core.values.routing_table import find_model
from scheduler.core.values.view import DeviceView, ModelFile, NodeView, RunnerView

# Reasons, for people.
CONSTRAINTS = "constraints"
PROJECTOR = "projector"
SPREAD = "spread"
# After so long a move is tried again.
MOVE_PAUSE_S = 30.0
# So many kept replicas are on nodes of their own where they can.
SPREAD_MIN = 2


def replace_outdated(state: ClusterState, now_s: float) -> None:
    """Take every replacement as far as it comes now."""
    if not state.observed.is_complete:
        return
    nodes = tuple(state.observed.nodes.values())
    for name in constrained_models(state):
        constraints = constraints_of(state, name)
        where = Constraints(nodes=constraints.nodes, devices=constraints.devices, backend=constraints.backend)
        if where == Constraints() and constraints.replicas_min < SPREAD_MIN:
            continue
        model = find_model(nodes, name)
        if model is None or model.error:
            continue
        if where != Constraints():
            _move(state, model, where, now_s)
        if constraints.replicas_min >= SPREAD_MIN:
            _spread(state, model, constraints.replicas_min, now_s)
    projectors = current_projectors(nodes)
    for digest in sorted({runner.model_digest for _, runner in state.observed.replicas()}):
        if projector := projectors.get(digest):
            _follow_projector(state, digest, projector, now_s)


def _move(state: ClusterState, model: ModelFile, where: Constraints, now_s: float) -> None:
    serving = list(serving_replicas(state, model.digest))
    misplaced = [runner for node_id, runner in serving if _is_misplaced(state, node_id, runner, where)]
    is_due = _stop_replaced(state, model, misplaced, len(serving), reason=CONSTRAINTS, now_s=now_s)
    # Constraints may conflict, or match nothing.
    if is_due and not unmatched(load_constraints(state, model.name), state.observed.nodes.values()):
        _begin(state, model, reason=CONSTRAINTS, now_s=now_s)


def _spread(state: ClusterState, model: ModelFile, minimum: int, now_s: float) -> None:
    """Have as many nodes serve as replicas are kept. A replica that shares its node goes once another node serves."""
    known = state.models[model.digest]
    serving = list(serving_replicas(state, model.digest))
    by_node = Counter(node_id for node_id, _ in serving)
    sharing = [runner for node_id, runner in serving if by_node[node_id] > 1]
    if len(by_node) >= minimum or not sharing:
        if known.is_spreading and len(serving) > minimum and sharing:
            leaving = min(sharing, key=lambda runner: (runner.slots_busy, runner.placement_id))
            order_stop(state, leaving.placement_id, reason=SPREAD, now_s=now_s)
        known.is_spreading = False
        return
    if len(serving) < minimum or any(job.model_digest == model.digest for job in state.jobs.values()):
        return
    known.is_spreading = False
    if not _is_due(known, SPREAD, now_s):
        return
    known.replacing_tried_s[SPREAD] = now_s
    taken = dict.fromkeys(by_node, "a replica of the model serves here")
    planned = imagined_load(model, load_target(state, model, NOTHING_ASKED), now_s)
    planned.failed.nodes.update(taken)
    outcome = plan_load(state, planned, now_s)
    if isinstance(outcome, Refusal) or (isinstance(outcome, Placement) and outcome.victims):
        return
    job = begin_load(state, model, now_s=now_s, is_extra=True, may_evict=False, reason=SPREAD)
    job.failed.nodes.update(taken)
    known.is_spreading = True


def _follow_projector(state: ClusterState, digest: str, projector: str, now_s: float) -> None:
    serving = [runner for _, runner in serving_replicas(state, digest)]
    others = [runner for runner in serving if runner.layout.projector_digest != projector]
    model = next(file for node in state.observed.nodes.values() if (file := node.model(digest)) is not None)
    if _stop_replaced(state, model, others, len(serving), reason=PROJECTOR, now_s=now_s):
        _begin(state, model, reason=PROJECTOR, now_s=now_s)


def _stop_replaced(
    state: ClusterState, model: ModelFile, outdated: Sequence[RunnerView], serving: int, *, reason: str, now_s: float
) -> bool:
    """Stop outdated replicas if enough others serve; return True if a load in their place is due instead.

    None is due soon after the last one: there may be no room.
    """
    if not outdated:
        return False
    if serving - len(outdated) >= max(1, constraints_of(state, model.name).replicas_min):
        for runner in outdated:
            order_stop(state, runner.placement_id, reason=reason, now_s=now_s)
        return False
    if any(job.model_digest == model.digest for job in state.jobs.values()):
        return False
    return _is_due(state.models[model.digest], reason, now_s)


def _is_due(known: ModelState, reason: str, now_s: float) -> bool:
    return not known.failures.blocks(now_s) and now_s >= known.replacing_tried_s.get(reason, -inf) + MOVE_PAUSE_S


def _begin(state: ClusterState, model: ModelFile, *, reason: str, now_s: float) -> None:
    state.models[model.digest].replacing_tried_s[reason] = now_s
    begin_load(state, model, now_s=now_s, is_extra=True, reason=reason)


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

"""Nodes that lack a model: they may have it from those that have it, which costs a fetch and room in their store.

They come after the nodes that have the file, unless a fetch brings what those cannot: devices alone, another node for
one replica more, or a place without an eviction. Values only; a host does the fetching.
"""

from collections.abc import Iterable
from dataclasses import replace

from scheduler.core.planning.candidates import (
    Candidate,
    ClusterView,
    MeasureFirst,
    Placement,
    PlacementRequest,
    Refusal,
    RefusalKind,
    Reports,
    Verdict,
)
from scheduler.core.planning.placement import plan_placement
from scheduler.core.values.constraints import SLOW_SHAPES, Shape
from scheduler.core.values.memory import bytes_text
from scheduler.core.values.origins import has_model, model_file
from scheduler.core.values.policy import Policy
from scheduler.core.values.view import DeviceKind, ModelFile, NodeView

Outcome = Placement | MeasureFirst | Refusal
# Over a network, or with work on the host's cores: worth a fetch to have it otherwise.
_SLOW = SLOW_SHAPES | {Shape.NODES}


def plan_anywhere(request: PlacementRequest, view: ClusterView, reports: Reports, policy: Policy) -> Outcome:
    """Choose where a model goes: a node that comes and goes is used only if no steady one can take the model."""
    outcome = _plan_on_steady(request, view, reports, policy)
    if not isinstance(outcome, Refusal) or not any(node.is_damped for node in view.nodes):
        return outcome
    every = replace(view, nodes=tuple(replace(node, is_damped=False) for node in view.nodes))
    anywhere = _plan_on_steady(request, every, reports, policy)
    return outcome if isinstance(anywhere, Refusal) else anywhere


def _plan_on_steady(request: PlacementRequest, view: ClusterView, reports: Reports, policy: Policy) -> Outcome:
    """Choose where a model goes: where its file is, else where it can be fetched to."""
    outcome = plan_placement(request, view, reports, policy)
    if isinstance(outcome, MeasureFirst) or (isinstance(outcome, Placement) and _is_good(outcome, request)):
        return outcome
    lacking = _lacking(request, view)
    if not lacking:
        return outcome
    file = fetchable_file(view, request.model_digest, request.layout.projector_digest)
    roomy = {node.id for node in lacking if file is not None and node.models_free_bytes >= file.fetched_bytes}
    if file is None or not roomy:
        return _explained(outcome, lacking, file)
    wider = replace(view, nodes=tuple(with_file(node, file) if node.id in roomy else node for node in view.nodes))
    return _explained(_better(outcome, plan_placement(request, wider, reports, policy), request), lacking, file)


def _better(here: Outcome, wider: Outcome, request: PlacementRequest) -> Outcome:
    """Return the better of two outcomes."""
    if isinstance(wider, MeasureFirst):
        return wider
    if isinstance(here, Refusal):
        is_busy = here.kind is RefusalKind.BUSY and isinstance(wider, Refusal)
        return here if is_busy else wider
    if not isinstance(wider, Placement) or not isinstance(here, Placement) or wider.victims:
        return here
    if here.victims:
        return wider
    if _is_slow(here) != _is_slow(wider):
        return wider if _is_slow(here) else here
    return wider if _is_beside(here, request) and not _is_beside(wider, request) else here


def _is_good(placement: Placement, request: PlacementRequest) -> bool:
    """Return True if a fetch could improve nothing."""
    return not _is_slow(placement) and not placement.victims and not _is_beside(placement, request)


def _is_beside(placement: Placement, request: PlacementRequest) -> bool:
    """Return True if a further replica is on a node that has one."""
    return any(node_id == placement.node_id for node_id, _ in request.replicas)


def _is_slow(placement: Placement) -> bool:
    return placement.shape in _SLOW


def _lacking(request: PlacementRequest, view: ClusterView) -> list[NodeView]:
    projector, draft = request.layout.projector_digest, request.layout.draft_digest
    return [
        node
        for node in view.nodes
        if not (node.suspect or node.is_damped)
        and node.id not in request.failed_nodes
        and not has_model(node, request.model_digest, projector)
        and (not draft or node.model(draft) is not None)  # has it, or has room for it
        and any(device.usable and device.kind is not DeviceKind.UNKNOWN for device in node.devices)
    ]


def fetchable_file(view: ClusterView, digest: str, projector_digest: str = "") -> ModelFile | None:
    """Return the file as nodes have it that another node can fetch from."""
    files = (model_file(node, digest, projector_digest) for node in view.nodes if not node.suspect)
    return next((file for file in files if file is not None and file.blob_digests), None)


def with_file(node: NodeView, file: ModelFile) -> NodeView:
    """Return the node as if it had fetched the file."""
    return replace(node, models=(*(model for model in node.models if model.digest != file.digest), file))


def _explained(outcome: Outcome, lacking: Iterable[NodeView], file: ModelFile | None) -> Outcome:
    """Add the lack of room for the file to the nodes that could not fetch it."""
    if isinstance(outcome, MeasureFirst):
        return outcome
    short = {
        node.id: node.models_free_bytes for node in lacking if file and node.models_free_bytes < file.fetched_bytes
    }
    if file is None or not short:
        return outcome
    candidates = tuple(
        _without_room(one, short[one.node_id], file.fetched_bytes)
        if one.verdict is Verdict.FILE_MISSING and one.node_id in short
        else one
        for one in outcome.candidates
    )
    if isinstance(outcome, Refusal) and outcome.kind is RefusalKind.NO_DEVICE:
        reasons = sorted({one.reason for one in candidates if one.reason})
        return replace(outcome, candidates=candidates, message=f"no device can take the model: {'; '.join(reasons)}")
    return replace(outcome, candidates=candidates)


def _without_room(candidate: Candidate, free_bytes: int, needed_bytes: int) -> Candidate:
    text = f"its store has room for {bytes_text(free_bytes)}, {bytes_text(needed_bytes)} are needed"
    return replace(candidate, reason=f"{candidate.reason}, and {text}")

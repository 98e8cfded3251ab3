"""Placement of a model together with its draft model; without it where the two do not go together. Pure."""

from dataclasses import replace

from scheduler.core.planning.candidates import ClusterView, MeasureFirst, Placement, PlacementRequest, Reports
from scheduler.core.planning.fetching import Outcome, fetchable_file, plan_anywhere, with_file
from scheduler.core.values.constraints import SHAPES_FASTEST_FIRST
from scheduler.core.values.policy import Policy
from scheduler.core.values.routing_table import find_model
from scheduler.core.values.view import ModelFile, NodeView


def plan_with_draft(
    request: PlacementRequest, view: ClusterView, reports: Reports, policy: Policy, *, unfetched: str = ""
) -> Outcome:
    """Plan a model with the draft model of its constraints, if it has one.

    A draft model never costs its target a faster shape, slots, context, a fetch or another model's place; a placement
    without it says so in its note. `unfetched`: the reason why its fetch failed during this load.
    """
    alone = plan_anywhere(request, view, reports, policy)
    name = request.constraints.draft
    if not name or not isinstance(alone, Placement):
        return alone
    file = find_model(view.nodes, name)
    if file is None or file.error:
        return replace(alone, note=f'no node has the draft model "{name}"; the model is loaded without it')
    if file.digest == request.model_digest:
        return replace(alone, note=f'the draft model "{name}" has the file of the model, which is loaded without it')
    if unfetched:
        return replace(alone, note=f'the draft model "{name}" is not fetched, the model is loaded alone: {unfetched}')
    wanted = replace(request, layout=replace(request.layout, draft_digest=file.digest))
    views = (having_draft(view, file, request.model_digest, fetches=fetches) for fetches in (False, True))
    for narrowed in views:
        drafted = plan_anywhere(wanted, narrowed, reports, policy)
        if isinstance(drafted, MeasureFirst):
            return drafted
        if isinstance(drafted, Placement) and _is_as_good(drafted, alone, view, request.model_digest):
            return drafted
    if any(node.model(file.digest) and node.model(request.model_digest) for node in narrowed.nodes):
        note = f'there is no room for the draft model "{name}" beside the model, which is loaded without it'
    else:
        note = f'no node with the model has the draft model "{name}" or can fetch it; the model is loaded without it'
    return replace(alone, note=note)


def having_draft(view: ClusterView, draft: ModelFile, model_digest: str, *, fetches: bool) -> ClusterView:
    """Return the part of the cluster that can load a model with a draft model, which nodes with room may fetch.

    A node without the draft model may still lend its devices; only its copy of the model is left out.
    """
    source = fetchable_file(view, draft.digest) if fetches else None

    def narrowed(node: NodeView) -> NodeView:
        if node.model(draft.digest):
            return node
        if source is None or node.models_free_bytes < source.fetched_bytes:
            return replace(node, models=tuple(model for model in node.models if model.digest != model_digest))
        left_bytes = node.models_free_bytes - source.fetched_bytes
        return replace(with_file(node, source), models_free_bytes=left_bytes)

    return replace(view, nodes=tuple(narrowed(node) for node in view.nodes))


def _is_as_good(drafted: Placement, alone: Placement, view: ClusterView, model_digest: str) -> bool:
    assert drafted.shape is not None, "planned now"
    assert alone.shape is not None, "likewise"
    rank = SHAPES_FASTEST_FIRST.index
    return (
        rank(drafted.shape) <= rank(alone.shape)
        and drafted.layout.slots >= alone.layout.slots
        and drafted.layout.context_tokens >= alone.layout.context_tokens
        and _layers(drafted) >= _layers(alone)
        and len(drafted.victims) <= len(alone.victims)
        and (_has(view, drafted.node_id, model_digest) or not _has(view, alone.node_id, model_digest))
    )


def _has(view: ClusterView, node_id: str, digest: str) -> bool:
    return any(node.id == node_id and node.model(digest) is not None for node in view.nodes)


def _layers(placement: Placement) -> int:
    return sum(part.layer_count for part in placement.layout.devices)

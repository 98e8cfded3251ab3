"""Vision projector of a model: the one beside it on the nodes. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from scheduler.core.planning.candidates import ClusterView
from scheduler.core.values.view import NodeView


def choose_projector(view: ClusterView, model_digest: str) -> tuple[str, ClusterView]:
    """Choose the projector that most nodes have beside the model, and the part of the cluster that can load both.

    A node that has the model without this projector may still lend its devices; only its copy of the model is left out.
    """
    projector = current_projector(view.nodes, model_digest)
    if not projector:
        return "", view
    return projector, replace(view, nodes=tuple(_narrowed(node, model_digest, projector) for node in view.nodes))


def current_projector(nodes: Iterable[NodeView], model_digest: str) -> str:
    """Return the projector that most nodes have beside the model; empty: none has one."""
    beside = Counter(
        file.projector_digest
        for node in nodes
        if (file := node.model(model_digest)) is not None and file.projector_digest
    )
    return min(beside, key=lambda digest: (-beside[digest], digest)) if beside else ""


def _narrowed(node: NodeView, model_digest: str, projector: str) -> NodeView:
    file = node.model(model_digest)
    if file is None or file.projector_digest == projector:
        return node
    return replace(node, models=tuple(model for model in node.models if model.digest != model_digest))

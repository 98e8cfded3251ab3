"""Vision projector of a model: the one beside it on the nodes. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace

from scheduler.core.planning.candidates import ClusterView
from scheduler.core.values.view import NodeView


def choose_projector(view: ClusterView, model_digest: str) -> tuple[str, ClusterView]:
    """Choose the projector that most nodes have beside the model, and the part of the cluster that can load both.

    A node that has the model without this projector may still lend its devices; only its copy of the model is left out.
    """
    projector = current_projectors(view.nodes).get(model_digest, "")
    if not projector:
        return "", view
    return projector, replace(view, nodes=tuple(_narrowed(node, model_digest, projector) for node in view.nodes))


def current_projectors(nodes: Iterable[NodeView]) -> dict[str, str]:
    """Return, by the digest of each model that has one, the projector that most nodes have beside it."""
    beside: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for node in nodes:
        for model_digest, projector in node.projectors().items():
            beside[model_digest][projector] += 1
    return {
        model_digest: min(counts, key=lambda digest: (-counts[digest], digest))
        for model_digest, counts in beside.items()
    }


def _narrowed(node: NodeView, model_digest: str, projector: str) -> NodeView:
    file = node.model(model_digest)
    if file is None or file.projector_digest == projector:
        return node
    return replace(node, models=tuple(model for model in node.models if model.digest != model_digest))

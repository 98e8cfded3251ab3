"""Choice of the projector that a model is loaded with."""

from dataclasses import replace

from scheduler.core.planning.candidates import ClusterView
from scheduler.core.planning.projectors import choose_projector
from scheduler.core.values.view import NodeView
from tests.unit.scheduler.builders import model, node


def having(name: str, projector: str | None) -> NodeView:
    """A node with the model and a projector beside it; None: without the model."""
    file = replace(model(), projector_digest=projector or "")
    other = model("other:latest")
    return node(name, models=(other,) if projector is None else (file, other))


def chosen(*nodes: NodeView) -> tuple[str, list[str]]:
    """The projector, and the nodes that can load both."""
    digest = model().digest
    projector, view = choose_projector(ClusterView(nodes=nodes), digest)
    assert [known.id for known in view.nodes] == [known.id for known in nodes]
    assert all(known.model(model("other:latest").digest) for known in view.nodes)
    return projector, [known.id for known in view.nodes if known.model(digest)]


def test_a_model_without_projectors_is_loaded_as_it_is() -> None:
    assert chosen(having("a", ""), having("b", ""), having("c", None)) == ("", ["a", "b"])


def test_nodes_without_the_projector_do_not_load_the_model() -> None:
    assert chosen(having("a", "p"), having("b", ""), having("c", None), having("d", "p")) == ("p", ["a", "d"])


def test_the_projector_of_most_nodes_counts_and_the_first_of_equals() -> None:
    assert chosen(having("a", "q"), having("b", "p"), having("c", "q")) == ("q", ["a", "c"])
    assert chosen(having("a", "q"), having("b", "p")) == ("p", ["b"])

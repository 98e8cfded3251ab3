"""What fetches take of the stores of nodes. Two loads that fetch to one node share its room, as devices are shared."""

from collections.abc import Iterable
from dataclasses import replace

from scheduler.core.books.books import Books
from scheduler.core.books.load_jobs import DONE, LoadJob
from scheduler.core.values.origins import has_model, model_file
from scheduler.core.values.view import NodeView


def without_promised_room(nodes: Iterable[NodeView], books: Books, job: LoadJob) -> tuple[NodeView, ...]:
    """The nodes with as much room in their stores as the fetches of other loads leave."""
    promised = _promised(books, job)
    if not promised:
        return tuple(nodes)
    return tuple(
        replace(node, models_free_bytes=max(0, node.models_free_bytes - promised[node.id]))
        if node.id in promised
        else node
        for node in nodes
    )


def _promised(books: Books, job: LoadJob) -> dict[str, int]:
    """By node: bytes that are still to come. Loads of one model fetch it once."""
    to_come: dict[tuple[str, str], int] = {}
    for other in books.jobs.values():
        if other is job or other.placement is None or other.state in DONE or other.model_digest == job.model_digest:
            continue
        key = other.placement.node_id, other.model_digest
        to_come[key] = max(to_come.get(key, 0), _to_come(books, other))
    promised: dict[str, int] = {}
    for (node_id, _), count in to_come.items():
        promised[node_id] = promised.get(node_id, 0) + count
    return {node_id: count for node_id, count in promised.items() if count}


def _to_come(books: Books, job: LoadJob) -> int:
    """What a load has not fetched yet; what it has is missing from the room that its node reports."""
    assert job.placement is not None, "asked of loads with a place"
    node, projector = books.node(job.placement.node_id), job.placement.layout.projector_digest
    if node is None or has_model(node, job.model_digest, projector):
        return 0
    known = (model_file(other, job.model_digest, projector) for other in books.observed.nodes.values())
    file = next((one for one in known if one is not None), None)
    return round(file.fetched_bytes * (1.0 - job.fetch_fraction)) if file is not None else 0

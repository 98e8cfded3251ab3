"""Room that fetches take in the stores of nodes. Loads that fetch to one node share its room, as devices are shared."""

from collections.abc import Iterable
from dataclasses import replace

from scheduler.core.state.cluster_state import ClusterState
from scheduler.core.state.load_jobs import DONE, LoadJob
from scheduler.core.values.origins import has_model, model_file
from scheduler.core.values.view import NodeView


def without_promised_room(nodes: Iterable[NodeView], state: ClusterState, job: LoadJob) -> tuple[NodeView, ...]:
    """Return the nodes with the room in their stores that the fetches of other loads leave."""
    promised = _promised(state, job)
    if not promised:
        return tuple(nodes)
    return tuple(
        replace(node, models_free_bytes=max(0, node.models_free_bytes - promised[node.id]))
        if node.id in promised
        else node
        for node in nodes
    )


def _promised(state: ClusterState, job: LoadJob) -> dict[str, int]:
    """Return the bytes that are still to be fetched, by node. Loads of one model fetch it once."""
    to_come: dict[tuple[str, str], int] = {}
    for other in state.jobs.values():
        if other is job or other.placement is None or other.state in DONE or other.model_digest == job.model_digest:
            continue
        key = other.placement.node_id, other.model_digest
        to_come[key] = max(to_come.get(key, 0), _to_come(state, other))
    promised: dict[str, int] = {}
    for (node_id, _), count in to_come.items():
        promised[node_id] = promised.get(node_id, 0) + count
    return {node_id: count for node_id, count in promised.items() if count}


def _to_come(state: ClusterState, job: LoadJob) -> int:
    """Return the bytes that a load has yet to fetch; the node's room already lacks the fetched ones."""
    assert job.placement is not None, "asked of loads with a place"
    node, projector = state.node(job.placement.node_id), job.placement.layout.projector_digest
    if node is None or has_model(node, job.model_digest, projector):
        return 0
    known = (model_file(other, job.model_digest, projector) for other in state.observed.nodes.values())
    file = next((one for one in known if one is not None), None)
    return round(file.fetched_bytes * (1.0 - job.attempt.fetch_fraction)) if file is not None else 0

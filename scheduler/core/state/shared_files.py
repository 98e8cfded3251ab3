"""Constraints of a replica if several names mean its file.

Names share replicas: a copy, or a model that only adds a system prompt, runs in the same one. The first request gives a
replica its name, so the name alone does not say which constraints keep it. All of them hold: pinned under one name is
pinned, and the largest minimum, priority and keep_alive count.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from scheduler.core.state.cluster_state import ClusterState
from scheduler.core.state.model_constraints import constraints_of
from scheduler.core.values.constraints import Constraints
from scheduler.core.values.view import NodeView, RunnerView, cached_per_view


def keeping_of(state: ClusterState, runner: RunnerView) -> Constraints:
    """Return the operators' constraints of a replica's model, under all names of its file."""
    if not state.constraints and not state.file_constraints:
        return constraints_of(state, runner.model_name)
    found = state.observed.replica(runner.placement_id)
    return keeping_on(state, found[0] if found is not None else "", runner.model_name, runner.model_digest)


def keeping_on(state: ClusterState, node_id: str, name: str, digest: str) -> Constraints:
    """Return the operators' constraints of a model that is about to run on a node, under all names of its file."""
    own = constraints_of(state, name)
    node = state.node(node_id)
    for other in _names_by_digest(node).get(digest, ()) if node is not None else ():
        if other != name:
            own = _with(own, constraints_of(state, other), state.policy.keep_alive_ms)
    return own


@cached_per_view
def _names_by_digest(node: NodeView) -> Mapping[str, Sequence[str]]:
    found: dict[str, list[str]] = {}
    for model in node.models:
        found.setdefault(model.digest, []).append(model.name)
    return found


def _with(own: Constraints, other: Constraints, default_ms: int) -> Constraints:
    """Add the constraints of another name; it removes nothing."""
    replicas_min = max(own.replicas_min, other.replicas_min)
    keep_alive_ms = own.keep_alive_ms
    if other.keep_alive_ms is not None:
        asked_ms = other.keep_alive_ms, default_ms if own.keep_alive_ms is None else own.keep_alive_ms
        keep_alive_ms = min(asked_ms) if min(asked_ms) < 0 else max(asked_ms)
    if (own.pinned, own.replicas_min, own.priority, own.keep_alive_ms) == (
        own.pinned or other.pinned,
        replicas_min,
        max(own.priority, other.priority),
        keep_alive_ms,
    ):
        return own
    return replace(
        own,
        pinned=own.pinned or other.pinned,
        replicas_min=replicas_min,
        replicas_max=max(own.replicas_max, replicas_min),
        priority=max(own.priority, other.priority),
        keep_alive_ms=keep_alive_ms,
    )

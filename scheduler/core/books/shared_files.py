"""What keeps a replica if several names mean its file.

Names share replicas: a copy, or a model that only adds a system prompt, runs in the same one. Whoever asks first gives
it its name, so the name alone does not say who keeps it. No operator's wish is undercut because somebody else asked by
another name: pinned under one name is pinned, and the largest minimum, priority and keep_alive hold.
"""

from dataclasses import replace

from scheduler.core.books.books import Books
from scheduler.core.books.model_constraints import constraints_of
from scheduler.core.values.constraints import Constraints
from scheduler.core.values.view import NodeView, RunnerView


def keeping_of(books: Books, runner: RunnerView) -> Constraints:
    """What operators want of the model of a replica, under all names of its file."""
    if not books.constraints and not books.file_constraints:
        return constraints_of(books, runner.model_name)
    found = books.observed.replica(runner.placement_id)
    return keeping_on(books, found[0] if found is not None else "", runner.model_name, runner.model_digest)


def keeping_on(books: Books, node_id: str, name: str, digest: str) -> Constraints:
    """The same of a model that is about to run on a node."""
    own = constraints_of(books, name)
    node = books.node(node_id)
    for other in _names(node, digest) if node is not None else ():
        if other != name:
            own = _with(own, constraints_of(books, other), books.policy.keep_alive_ms)
    return own


def _names(node: NodeView, digest: str) -> list[str]:
    by_digest: dict[str, list[str]] | None = node.memo.get("names")
    if by_digest is None:
        by_digest = node.memo["names"] = {}
        for model in node.models:
            by_digest.setdefault(model.digest, []).append(model.name)
    return by_digest.get(digest, [])


def _with(own: Constraints, other: Constraints, default_ms: int) -> Constraints:
    """What another name adds; it takes nothing away."""
    replicas_min = max(own.replicas_min, other.replicas_min)
    keep_alive_ms = own.keep_alive_ms
    if other.keep_alive_ms is not None:
        wished_ms = other.keep_alive_ms, default_ms if own.keep_alive_ms is None else own.keep_alive_ms
        keep_alive_ms = min(wished_ms) if min(wished_ms) < 0 else max(wished_ms)
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

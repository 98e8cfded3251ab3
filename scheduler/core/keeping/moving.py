"""Replicas that lie where an operator does not want them any more: one is loaded in the right place, then they go.

Until that one serves, they do; a busy one ends its sequences first. Where there is no room they stay.
"""

from collections.abc import Iterator

from scheduler.core.books.books import Books
from scheduler.core.books.model_constraints import constraints_of, load_constraints, wished_models
from scheduler.core.books.replicas import serving_replicas
from scheduler.core.loading.requests import begin_load
from scheduler.core.stopping.stopping import order_stop
from scheduler.core.values.constraints import Constraints, device_obstacle, node_obstacle, unmatched
from scheduler.core.values.routing_table import find_model
from scheduler.core.values.view import DeviceView, ModelFile, NodeView, RunnerView

REASON = "constraints"
# After so long a move is tried again.
MOVE_PAUSE_S = 30.0


def move_misplaced(books: Books, now_s: float) -> None:
    """Take every move as far as it comes now."""
    if not books.observed.was_seen or books.observed.is_young or books.observed.frozen_since_s is not None:
        return
    nodes = tuple(books.observed.nodes.values())
    for name in wished_models(books):
        wishes = constraints_of(books, name)
        where = Constraints(nodes=wishes.nodes, devices=wishes.devices, backend=wishes.backend)
        model = find_model(nodes, name) if where != Constraints() else None
        if model is not None and not model.error:
            _move(books, model, where, now_s)


def _move(books: Books, model: ModelFile, where: Constraints, now_s: float) -> None:
    serving = list(serving_replicas(books, model.digest))
    misplaced = [runner for node_id, runner in serving if _is_misplaced(books, node_id, runner, where)]
    if not misplaced:
        return
    wishes = constraints_of(books, model.name)
    if len(serving) - len(misplaced) >= max(1, wishes.replicas_min):
        for runner in misplaced:
            order_stop(books, runner.placement_id, reason=REASON, now_s=now_s)
    elif not any(job.model_digest == model.digest for job in books.jobs.values()) and _may_load(books, model, now_s):
        books.move_tried_s[model.digest] = now_s
        begin_load(books, model, now_s=now_s, is_extra=True, reason=REASON)


def _may_load(books: Books, model: ModelFile, now_s: float) -> bool:
    """Not again and again where there is no room, or where clients and operators pull at the model."""
    failures = books.failures.get(model.digest)
    if failures is not None and now_s < failures.until_s:
        return False
    if now_s < books.move_tried_s.get(model.digest, -MOVE_PAUSE_S) + MOVE_PAUSE_S:
        return False
    return not unmatched(load_constraints(books, model.name), books.observed.nodes.values())


def _is_misplaced(books: Books, head_id: str, runner: RunnerView, where: Constraints) -> bool:
    """Whether nothing would be placed there now: on the runner's own node, or on one that lends to it."""
    head = books.node(head_id)
    if head is None:
        return False
    if node_obstacle(where, head):
        return True
    return any(device_obstacle(where, node, device) for node, device in _devices(books, head, runner))


def _devices(books: Books, head: NodeView, runner: RunnerView) -> Iterator[tuple[NodeView, DeviceView]]:
    """Every device that it lies on, with its node. One that is not known says nothing about a wish."""
    for part in runner.layout.devices:
        owner = books.node(part.node_id) if part.node_id else head
        device = owner.device(part.device_id) if owner is not None else None
        if owner is not None and device is not None:
            yield owner, device
    if not runner.layout.devices and head.host_device is not None:
        yield head, head.host_device

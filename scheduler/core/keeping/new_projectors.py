"""Replicas without the projector that lies beside their model now: one is loaded with it, then they go.

Until that one serves, they answer what is text; a busy one ends its sequences first. Where there is no room they stay.
"""

from scheduler.core.books.books import Books
from scheduler.core.books.model_constraints import constraints_of
from scheduler.core.books.replicas import serving_replicas
from scheduler.core.loading.requests import begin_load
from scheduler.core.planning.projectors import current_projector
from scheduler.core.stopping.stopping import order_stop

REASON = "projector"
# After so long it is tried again.
PAUSE_S = 30.0


def follow_projectors(books: Books, now_s: float) -> None:
    """Take every such change as far as it comes now."""
    observed = books.observed
    if not observed.was_seen or observed.is_young or observed.frozen_since_s is not None:
        return
    for digest in sorted({runner.model_digest for _, runner in observed.replicas()}):
        if projector := current_projector(observed.nodes.values(), digest):
            _follow(books, digest, projector, now_s)


def _follow(books: Books, digest: str, projector: str, now_s: float) -> None:
    serving = [runner for _, runner in serving_replicas(books, digest)]
    others = [runner for runner in serving if runner.layout.projector_digest != projector]
    if not others:
        return
    model = next(file for node in books.observed.nodes.values() if (file := node.model(digest)) is not None)
    if model.error:
        return
    if len(serving) - len(others) >= max(1, constraints_of(books, model.name).replicas_min):
        for runner in others:
            order_stop(books, runner.placement_id, reason=REASON, now_s=now_s)
    elif not any(job.model_digest == digest for job in books.jobs.values()) and _may_load(books, digest, now_s):
        books.projector_tried_s[digest] = now_s
        begin_load(books, model, now_s=now_s, is_extra=True, reason=REASON)


def _may_load(books: Books, digest: str, now_s: float) -> bool:
    failures = books.failures.get(digest)
    if failures is not None and now_s < failures.until_s:
        return False
    return now_s >= books.projector_tried_s.get(digest, -PAUSE_S) + PAUSE_S

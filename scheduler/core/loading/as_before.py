"""A replica that is lost is placed anew as it was asked for, whoever brings it back.

What the new load asks for itself comes first: where it wants another kind of replica, nothing is taken over. Nobody is
refused for wishes that are not his: a load for which there is no room or no device as before goes on as it asks itself.
Such wishes end with the keep_alive of the lost replica, by which it would have gone, with an unload, and where the
model crashes or fails again and again: they may be why.
"""

from dataclasses import dataclass, replace

from common.errors import InvalidRequest
from scheduler.core.books.books import Books
from scheduler.core.books.load_jobs import LoadJob, OwnWish
from scheduler.core.books.model_constraints import constraints_of, load_constraints
from scheduler.core.loading.answers import forget
from scheduler.core.loading.crashes import broken_nodes
from scheduler.core.room.keep_cost import default_keep_alive_ms
from scheduler.core.values.asked import NO_OPTIONS, Asked, LoadOptions
from scheduler.core.values.constraints import unmatched
from scheduler.core.values.desired import DesiredPlacement, Phase
from scheduler.core.values.view import ModelFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """The lost replica in whose place a load comes."""

    placement_id: str
    asked: Asked  # with what the load itself asks for
    keep_alive_ms: int | None


def find_before(books: Books, model: ModelFile, own: Asked, now_s: float) -> Before | None:
    """The lost replica that a load for `own` replaces; None: there is none, or it was of another kind."""
    failures = books.failures.get(model.digest)
    if failures is not None and failures.count >= books.policy.load_attempts_max:
        return None
    broken = broken_nodes(books, model.digest, now_s)
    taken = {job.instead_of for job in books.jobs.values()}
    for record in sorted(_lost(books, model.digest), key=lambda one: one.placement_id):
        if record.placement_id in taken or record.node_id in broken or not _counts(books, record, now_s):
            continue
        asked = own.like(record.asked) if (own.context_tokens or 0) <= record.layout.context_tokens else None
        if asked is not None and _can_be_followed(books, model, asked.options):
            return Before(placement_id=record.placement_id, asked=asked, keep_alive_ms=record.keep_alive_ms)
    return None


def _lost(books: Books, digest: str) -> list[DesiredPlacement]:
    """Whose runner died, or whose node is gone with it."""
    return [
        record
        for record in books.desired.values()
        if record.model_digest == digest
        and (record.phase is Phase.LOST or (record.phase is Phase.RUNNING and books.node(record.node_id) is None))
    ]


def _counts(books: Books, record: DesiredPlacement, now_s: float) -> bool:
    """Whether it would still be there, had it not been lost."""
    wishes = constraints_of(books, record.model_name)
    keep_alive_ms = default_keep_alive_ms(books, wishes) if record.keep_alive_ms is None else record.keep_alive_ms
    if wishes.replicas_min or wishes.pinned or keep_alive_ms < 0:
        return True
    unseen_since_s = books.desired_unseen_since_s.get(record.placement_id, now_s)
    return now_s < books.lost_since_s.get(record.placement_id, unseen_since_s) + keep_alive_ms / 1000


def _can_be_followed(books: Books, model: ModelFile, options: LoadOptions) -> bool:
    """Whether it neither contradicts what is set for the model by now, nor asks for what is not there any more."""
    try:
        constraints = load_constraints(books, model.name, options)
    except InvalidRequest:
        return False
    return not unmatched(constraints, books.observed.nodes.values())


def as_asked_itself(job: LoadJob) -> bool:
    """Plan a load without what was taken over; False: nothing was."""
    own = job.own
    if own is None:
        return False
    job.wanted_tokens, job.options = own.asked.context_tokens, own.asked.options
    job.context_tokens, job.constraints = own.context_tokens, own.constraints
    job.own = None
    return True


def join(job: LoadJob, wanted: int | None, options: LoadOptions) -> None:
    """A caller is content with a load: what it asks for is not given up with what was taken over."""
    own = job.own
    if own is None:
        return
    if options.placing != NO_OPTIONS.placing:
        job.own = None  # the same, and now somebody asks for it
    elif wanted is not None:
        asked = replace(own.asked, context_tokens=max(wanted, own.asked.context_tokens or 0))
        job.own = OwnWish(asked=asked, context_tokens=max(wanted, own.context_tokens), constraints=own.constraints)


def forget_lost(books: Books, digest: str) -> None:
    """Nobody wants the model's replicas any more, those that are lost neither."""
    taken = {job.record.placement_id for job in books.jobs.values() if job.record is not None}
    for record in _lost(books, digest):
        if record.placement_id not in taken:
            forget(books, record.placement_id)

"""When the core has to look again although nothing has happened."""

import math
from collections.abc import Iterator

from scheduler.core.books.books import Books, StopState
from scheduler.core.books.load_jobs import ON_HOST, UNPLACED
from scheduler.core.loading.starting import load_deadline_s
from scheduler.core.reconcile import expiry_of
from scheduler.core.values.view import SERVING_STATES

# How often a load looks again that waits for memory: replicas become evictable with time alone.
RETRY_S = 1.0


def wake_at_s(books: Books, now_s: float) -> float | None:
    """The earliest moment after `now_s` at which time alone changes a decision."""
    moments: list[float | None] = [*books.observed.wake_at_s()]
    if books.leadership is not None:
        moments += [*_loads(books, now_s), *_stops(books), *_expiries(books)]
        moments += [since_s + books.policy.node_forgotten_s for since_s in books.desired_unseen_since_s.values()]
        moments += [drain.over_s for drain in books.drains.values()]
        moments += [since_s + books.policy.device_lost_s for since_s in books.devices_lost_since_s.values()]
        moments += [question.until_s for question in books.questions.values()]
        moments += [since_s + books.policy.scale_up_after_s for since_s in books.waits_since_s.values()]
    return min((moment for moment in moments if moment is not None and now_s < moment < math.inf), default=None)


def _loads(books: Books, now_s: float) -> Iterator[float | None]:
    for job in books.jobs.values():
        yield job.moved_s + books.policy.load_stall_s
        if job.state in ON_HOST:
            yield load_deadline_s(books, job)
        yield job.resend_at_s
        if job.state in UNPLACED:
            yield job.not_before_s
            yield job.restart.until_s if job.restart is not None else None
        if job.busy_since_s is not None:
            yield now_s + RETRY_S


def _stops(books: Books) -> Iterator[float | None]:
    for stop in books.stops.values():
        yield stop.retry_at_s
        if stop.state is StopState.RECOVERING:
            yield stop.recover_until_s


def _expiries(books: Books) -> Iterator[float | None]:
    for node_id, runner in books.observed.replicas():
        if runner.state in SERVING_STATES and runner.placement_id not in books.stops:
            yield expiry_of(books, runner) if books.observed.is_current(node_id) else None

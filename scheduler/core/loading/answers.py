"""What callers who wait for a load are told, and how a load ends for all of them."""

from scheduler.core.books.books import Books, Failures
from scheduler.core.books.effects import (
    AnswerFailed,
    AnswerLoading,
    AnswerQueued,
    AnswerReady,
    RemoveDesired,
    SaveDesired,
)
from scheduler.core.books.load_jobs import ON_HOST, UNPLACED, LoadJob, LoadState
from scheduler.core.books.replicas import serving_replicas, will_do
from scheduler.core.loading.comers import come_to
from scheduler.core.loading.expecting import eta_s, waits_for
from scheduler.core.values.desired import DesiredPlacement, Phase
from scheduler.core.values.faults import Fault


def attach(books: Books, job: LoadJob, caller_id: str, now_s: float) -> None:
    """Let a caller wait for a load, and tell it where that stands."""
    job.callers[caller_id] = None
    job.was_asked = True
    if job.state in ON_HOST:
        books.emit(loading_answer(books, job, (caller_id,), now_s))
    elif job.position:
        books.emit(_queued_answer(books, job, (caller_id,), now_s))


def tell_positions(books: Books, now_s: float) -> None:
    """Tell callers whose place among the waiting loads has changed, or what their load waits for."""
    waiting = [job for job in books.jobs_by_age() if job.state in UNPLACED]
    for position, job in enumerate(waiting, start=1):
        text = waits_for(job)
        if (job.position, job.told) != (position, text):
            job.position, job.told = position, text
            if job.callers:
                books.emit(_queued_answer(books, job, tuple(job.callers), now_s))


def _queued_answer(books: Books, job: LoadJob, callers: tuple[str, ...], now_s: float) -> AnswerQueued:
    return AnswerQueued(
        callers=callers, position=job.position, waits_for=waits_for(job), eta_s=eta_s(books, job, now_s)
    )


def loading_answer(books: Books, job: LoadJob, callers: tuple[str, ...], now_s: float) -> AnswerLoading:
    """How far a load is, for these callers."""
    progress = job.progress
    return AnswerLoading(
        callers=callers,
        fraction=progress.fraction,
        bytes_done=progress.bytes_done,
        bytes_total=progress.bytes_total,
        waits_for=waits_for(job),
        eta_s=eta_s(books, job, now_s),
    )


def fail(books: Books, job: LoadJob, fault: Fault, now_s: float) -> None:
    """End a load and tell everybody why. What was started is stopped by whoever calls."""
    job.move(LoadState.FAILED, now_s)
    books.jobs.pop(job.id, None)
    record = job.record
    if record is not None:
        if record.placement_id not in books.stops:
            _end_record(books, job, record)
        books.failures[job.model_digest] = _once_more(books, books.failures.get(job.model_digest), now_s)
    elif not job.was_asked:
        books.keep_failures[job.model_digest] = _once_more(books, books.keep_failures.get(job.model_digest), now_s)
    books.note(
        "model.load_failed", model=job.model_name, reason=fault.reason, text=fault.message, attempts=job.attempts,
        load_s=round(now_s - job.created_s, 3), callers=len(job.callers),
    )  # fmt: skip
    callers = job.take_callers()
    if callers:
        books.emit(AnswerFailed(callers=callers, fault=fault))


def _end_record(books: Books, job: LoadJob, record: DesiredPlacement) -> None:
    """What failed is not wanted any more. What was lost before it is still to be placed anew as it was asked for."""
    if job.own is None or books.leadership is None:
        forget(books, record.placement_id)
        return
    books.desired[record.placement_id] = lost = record.in_phase(Phase.LOST)
    books.emit(SaveDesired(fence=books.leadership.fence, record=lost))


def _once_more(books: Books, known: Failures | None, now_s: float) -> Failures:
    count = 1 if known is None else known.count + 1
    pause_s = min(books.policy.restart_backoff_s * 2 ** (count - 1), books.policy.restart_backoff_s_max)
    return Failures(count=count, until_s=now_s + pause_s)


def forget(books: Books, placement_id: str) -> None:
    """A placement is not wanted any more. A runner that turns up all the same is adopted."""
    if placement_id not in books.desired:
        return
    books.forget_desired(placement_id)
    if books.leadership is not None:
        books.emit(RemoveDesired(fence=books.leadership.fence, placement_id=placement_id))


def end_served(books: Books, now_s: float) -> None:
    """End the loads for which a replica has appeared by itself: its node is back, a former leader's load is done."""
    for job in books.jobs_by_age():
        if job.state in UNPLACED and not job.is_extra:
            _end_if_served(books, job, now_s)


def _end_if_served(books: Books, job: LoadJob, now_s: float) -> None:
    asked = job.callers_ask
    found = [
        runner
        for node_id, runner in serving_replicas(books, job.model_digest)
        if will_do(books, node_id, runner, wanted_tokens=asked.context_tokens, options=asked.options)
    ]
    if not found:
        return
    if job.state is not LoadState.WAITING:
        job.move(LoadState.WAITING, now_s)
    job.move(LoadState.READY, now_s)
    del books.jobs[job.id]
    for runner in found:
        come_to(books, runner, job.keep_alive_ms if job.was_asked else None, load_only=job.load_only, now_s=now_s)
    callers = job.take_callers()
    if callers:
        books.emit(AnswerReady(callers=callers, model_name=job.model_name))

"""What callers ask for: a replica of a model, or that there be none."""

from scheduler.core.answers import attach, fail
from scheduler.core.books import Books
from scheduler.core.effects import AnswerFailed, AnswerReady, AnswerUnloading, SaveDesired
from scheduler.core.events import EnsureRequested, UnloadRequested
from scheduler.core.faults import Fault, bad_model_file, model_not_found, queue_full, unavailable
from scheduler.core.layouts import chosen_context_tokens, wanted_context_tokens
from scheduler.core.load_jobs import ON_HOST, LoadJob
from scheduler.core.replicas import serving_replicas
from scheduler.core.routing_table import find_model
from scheduler.core.starting import stop_load
from scheduler.core.stopping import order_stop
from scheduler.core.view import ModelFile


def ensure(books: Books, event: EnsureRequested, now_s: float) -> None:
    """Answer at once if a replica will do, else let the caller wait for a load.

    1. Unknown, or known to be broken: say so.
    2. A replica with enough context serves: that one, whoever leads.
    3. No leadership, or as many waiting as may: refuse.
    4. A load that will do is under way: wait for it. Else begin one.
    """
    model = find_model(tuple(books.observed.nodes.values()), event.model_name)
    fault = _why_not(books, model, event.model_name)
    if fault is not None or model is None:
        fault = fault or model_not_found(event.model_name)
        books.emit(AnswerFailed(callers=(event.caller_id,), fault=fault))
        return
    wanted = wanted_context_tokens(event.context_tokens, trained=model.trained_context_tokens)
    if _send_to_replica(books, event, model, wanted, now_s):
        return
    if books.leadership is None:
        books.emit(AnswerFailed(callers=(event.caller_id,), fault=unavailable(books.no_leader_why)))
        return
    if books.waiters() >= books.policy.load_waiters_max:
        books.emit(AnswerFailed(callers=(event.caller_id,), fault=queue_full()))
        return
    job = _job_that_will_do(books, model, wanted) or _begin_job(books, event, model, wanted, now_s)
    if event.keep_alive_ms is not None:
        job.keep_alive_ms = event.keep_alive_ms
    attach(books, job, event.caller_id)


def _why_not(books: Books, model: ModelFile | None, name: str) -> Fault | None:
    if model is not None:
        return bad_model_file(name, model.error) if model.error else None
    observed = books.observed
    if not observed.was_seen or (observed.is_young and not observed.nodes):
        return unavailable("no node has registered yet")
    return None


def _send_to_replica(books: Books, event: EnsureRequested, model: ModelFile, wanted: int | None, now_s: float) -> bool:
    found = [one for _, one in serving_replicas(books, model.digest) if (wanted or 0) <= one.layout.context_tokens]
    if not found:
        return False
    for runner in found:
        memo = books.memos.get(runner.placement_id)
        if memo is None:
            continue
        memo.send_caller(runner, now_s)
        if event.keep_alive_ms is not None:
            memo.ask(event.keep_alive_ms, runner.keep_alive_ms)
            _write_keep_alive(books, runner.placement_id, event.keep_alive_ms)
    books.emit(AnswerReady(callers=(event.caller_id,), model_name=model.name))
    return True


def _write_keep_alive(books: Books, placement_id: str, keep_alive_ms: int) -> None:
    """So that the next leader knows it too. Nothing depends on it: a store that is away is no reason to refuse."""
    record = books.desired.get(placement_id)
    if record is None or books.leadership is None or record.keep_alive_ms == keep_alive_ms:
        return
    record = record.with_keep_alive(keep_alive_ms)
    books.desired[placement_id] = record
    books.emit(SaveDesired(fence=books.leadership.fence, record=record))


def _job_that_will_do(books: Books, model: ModelFile, wanted: int | None) -> LoadJob | None:
    for job in books.jobs_by_age():
        if job.model_digest != model.digest:
            continue
        if (wanted or 0) <= job.context_tokens:
            return job
        if job.record is None and job.placement is None:
            assert wanted is not None, "whoever asks for nothing is content with any load"
            job.context_tokens = job.wanted_tokens = wanted  # nothing is decided yet: one load serves both
            return job
    return None


def _begin_job(books: Books, event: EnsureRequested, model: ModelFile, wanted: int | None, now_s: float) -> LoadJob:
    books.jobs_begun += 1
    failures = books.failures.get(model.digest)
    chosen = chosen_context_tokens(wanted, configured=books.policy.context_tokens, trained=model.trained_context_tokens)
    job = LoadJob(
        id=books.jobs_begun,
        model_name=model.name,
        model_digest=model.digest,
        context_tokens=chosen,
        wanted_tokens=wanted,
        keep_alive_ms=event.keep_alive_ms,
        created_s=now_s,
        moved_s=now_s,
        not_before_s=failures.until_s if failures is not None else 0.0,
    )
    books.jobs[job.id] = job
    books.note("model.load_requested", model=model.name, context_tokens=chosen, asked=wanted is not None)
    return job


def leave(books: Books, caller_id: str) -> None:
    """A caller waits no longer. Its load goes on."""
    for job in books.jobs.values():
        job.callers.pop(caller_id, None)


def unload(books: Books, event: UnloadRequested, now_s: float) -> None:
    """Order every replica of a model to go. A load that somebody waits for goes on."""
    model = find_model(tuple(books.observed.nodes.values()), event.model_name)
    if model is None:
        fault = _why_not(books, None, event.model_name) or model_not_found(event.model_name)
        books.emit(AnswerFailed(callers=(event.caller_id,), fault=fault))
        return
    if books.leadership is None:
        books.emit(AnswerFailed(callers=(event.caller_id,), fault=unavailable(books.no_leader_why)))
        return
    serving = sorted(runner.placement_id for _, runner in serving_replicas(books, model.digest))
    ordered = sum(order_stop(books, one, reason="unload", now_s=now_s) for one in serving)
    for job in books.jobs_by_age():
        if job.model_digest == model.digest and not job.callers:
            if job.state in ON_HOST:
                stop_load(books, job, reason="unload", now_s=now_s)
                ordered += 1
            fail(books, job, unavailable("the model was unloaded"), now_s)
    books.emit(AnswerUnloading(caller_id=event.caller_id, replicas=ordered))

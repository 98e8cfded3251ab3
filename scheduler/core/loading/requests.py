"""What callers ask for: a replica of a model, or that there be none."""

import statistics
from dataclasses import replace

from common.errors import InvalidRequest
from scheduler.core.books.books import Books
from scheduler.core.books.effects import AnswerFailed, AnswerReady, AnswerUnloading
from scheduler.core.books.events import EnsureRequested, UnloadRequested
from scheduler.core.books.growth import grown_context_tokens, remember_asked
from scheduler.core.books.load_jobs import ON_HOST, UNPLACED, LoadJob, OwnWish
from scheduler.core.books.model_constraints import constraints_of, followable, load_constraints
from scheduler.core.books.replicas import serving_replicas, will_do
from scheduler.core.books.shared_files import keeping_of
from scheduler.core.loading.answers import attach, fail
from scheduler.core.loading.as_before import as_asked_itself, find_before, forget_lost, join
from scheduler.core.loading.comers import come_to
from scheduler.core.loading.starting import stop_load
from scheduler.core.stopping.stopping import order_stop
from scheduler.core.values.asked import NO_OPTIONS, Asked, LoadOptions
from scheduler.core.values.constraints import Constraints, unmatched
from scheduler.core.values.faults import (
    Fault,
    bad_model_file,
    canceled,
    invalid_value,
    model_not_found,
    queue_full,
    unavailable,
)
from scheduler.core.values.layouts import chosen_context_tokens, wanted_context_tokens
from scheduler.core.values.routing_table import find_model
from scheduler.core.values.view import ModelFile


def ensure(books: Books, event: EnsureRequested, now_s: float) -> None:
    """Answer at once if a replica will do, else let the caller wait for a load.

    1. Unknown, or known to be broken: say so.
    2. A replica with enough context serves: that one, whoever leads.
    3. No leadership, wishes that nothing can meet, or as many waiting as may: refuse.
    4. A load that will do is under way: wait for it. Else begin one.
    """
    model = find_model(tuple(books.observed.nodes.values()), event.model_name)
    fault = _why_not(books, model, event.model_name)
    if fault is not None or model is None:
        _refuse(books, event, fault or model_not_found(event.model_name))
        return
    event = replace(event, options=followable(books, model.name, event.options))
    wanted = wanted_context_tokens(event.context_tokens, trained=model.trained_context_tokens, sees=model.sees)
    remember_asked(books, model.digest, wanted, now_s)
    if _send_to_replica(books, event, model, wanted, now_s):
        return
    if books.leadership is None:
        _refuse(books, event, unavailable(books.no_leader_why))
        return
    constraints = _constraints(books, model, event.options)
    if isinstance(constraints, Fault):
        _refuse(books, event, constraints)
        return
    if books.waiters() >= books.policy.load_waiters_max:
        _refuse(books, event, queue_full(_usual_load_s(books)))
        return
    job = _job_that_will_do(books, model, wanted, event.options, constraints)
    if job is None:
        job = begin_load(books, model, now_s=now_s, wanted=wanted, options=event.options, reason="asked")
        job.load_only = event.load_only
    job.load_only = job.load_only and event.load_only
    if event.keep_alive_ms is not None:
        job.keep_alive_ms = event.keep_alive_ms
    attach(books, job, event.caller_id, now_s)


def _refuse(books: Books, event: EnsureRequested | UnloadRequested, fault: Fault) -> None:
    books.emit(AnswerFailed(callers=(event.caller_id,), fault=fault))


def _usual_load_s(books: Books) -> float | None:
    """How long a load takes: of the models that are waited for, else of any; None: none was seen."""
    waited_for = {job.model_digest for job in books.jobs.values()}
    seen = {digest: one.load_s for digest, one in books.demand.items() if one.load_s is not None}
    relevant = [load_s for digest, load_s in seen.items() if digest in waited_for] or list(seen.values())
    return statistics.median(relevant) if relevant else None


def _why_not(books: Books, model: ModelFile | None, name: str) -> Fault | None:
    if model is not None:
        return bad_model_file(name, model.error) if model.error else None
    observed = books.observed
    if not observed.was_seen or (observed.is_young and not observed.nodes):
        return unavailable("no node has registered yet")
    return None


def _constraints(books: Books, model: ModelFile, options: LoadOptions) -> Constraints | Fault:
    """What holds for the load, or which wish contradicts the others or matches nothing that there is."""
    try:
        constraints = load_constraints(books, model.name, options)
    except InvalidRequest as error:
        return invalid_value(error.message)
    if name := unmatched(constraints, books.observed.nodes.values()):
        if name == "backend" and not constraints_of(books, model.name).backend:
            return unavailable(f'no device of this cluster has the backend "{constraints.backend}" of PUNA_LLM_LIBRARY')
        return invalid_value(f'"{name}" matches no node or device of this cluster')
    return constraints


def _send_to_replica(books: Books, event: EnsureRequested, model: ModelFile, wanted: int | None, now_s: float) -> bool:
    found = [
        one
        for node_id, one in serving_replicas(books, model.digest)
        if will_do(books, node_id, one, wanted_tokens=wanted, options=event.options)
    ]
    if not found:
        return False
    for runner in found:
        come_to(books, runner, event.keep_alive_ms, load_only=event.load_only, now_s=now_s)
    books.emit(AnswerReady(callers=(event.caller_id,), model_name=model.name))
    return True


def _job_that_will_do(
    books: Books, model: ModelFile, wanted: int | None, options: LoadOptions, constraints: Constraints
) -> LoadJob | None:
    for job in books.jobs_by_age():
        if job.model_digest != model.digest:
            continue
        undecided = job.record is None and job.placement is None
        if options.placing not in {job.options.placing, NO_OPTIONS.placing}:
            if not undecided or job.callers_ask.options.placing != NO_OPTIONS.placing:
                continue
            as_asked_itself(job)
            job.options, job.constraints = options, constraints  # nothing is decided yet: one load serves both
        if (wanted or 0) <= job.context_tokens:
            join(job, wanted, options)
            return job
        if undecided:
            assert wanted is not None, "whoever asks for nothing is content with any load"
            join(job, wanted, options)
            job.context_tokens = job.wanted_tokens = wanted
            return job
    return None


def begin_load(
    books: Books,
    model: ModelFile,
    *,
    now_s: float,
    reason: str,
    wanted: int | None = None,
    options: LoadOptions = NO_OPTIONS,
    is_extra: bool = False,
    may_evict: bool = True,
) -> LoadJob:
    """One load more. `is_extra`: beside the replicas that serve already."""
    books.jobs_begun += 1
    failures = books.failures.get(model.digest)
    own = _wish(books, model, Asked(context_tokens=wanted, options=options), is_extra=is_extra, now_s=now_s)
    before = find_before(books, model, own.asked, now_s)
    wish = own if before is None else _wish(books, model, before.asked, is_extra=is_extra, now_s=now_s)
    job = LoadJob(
        id=books.jobs_begun,
        model_name=model.name,
        model_digest=model.digest,
        context_tokens=wish.context_tokens,
        reason=reason,
        wanted_tokens=wish.asked.context_tokens,
        keep_alive_ms=None if before is None else before.keep_alive_ms,
        options=wish.asked.options,
        constraints=wish.constraints,
        instead_of="" if before is None else before.placement_id,
        own=None if wish.asked == own.asked else own,
        is_extra=is_extra,
        may_evict=may_evict,
        created_s=now_s,
        moved_s=now_s,
        not_before_s=failures.until_s if failures is not None else 0.0,
    )
    books.jobs[job.id] = job
    books.note(
        "model.load_requested", model=model.name, context_tokens=job.context_tokens, asked=wanted is not None,
        reason=reason, instead_of=job.instead_of,
    )  # fmt: skip
    return job


def _wish(books: Books, model: ModelFile, asked: Asked, *, is_extra: bool, now_s: float) -> OwnWish:
    """What is asked, and what follows from it.

    Raises:
        InvalidRequest: it contradicts what is set for the model.
    """
    constraints = load_constraints(books, model.name, asked.options)
    tokens = chosen_context_tokens(
        asked.context_tokens,
        configured=constraints.context_tokens or books.policy.context_tokens,
        trained=model.trained_context_tokens,
        sees=model.sees,
    )
    if is_extra or any(serving_replicas(books, model.digest)):
        tokens = grown_context_tokens(books, model, tokens, now_s)
    return OwnWish(asked=asked, context_tokens=tokens, constraints=constraints)


def leave(books: Books, caller_id: str) -> None:
    """A caller waits no longer. Its load goes on."""
    books.questions.pop(caller_id, None)
    for job in books.jobs.values():
        job.callers.pop(caller_id, None)


def drop_deserted(books: Books, now_s: float) -> None:
    """End loads that nobody waits for any more, have not begun, and stand in the way of one that somebody waits for."""
    waiting = [job for job in books.jobs.values() if job.callers and job.state in UNPLACED and job.waits_for]
    if not waiting:
        return
    for job in books.jobs_by_age():
        if job.was_asked and not job.callers and job.state in UNPLACED:
            fail(books, job, canceled("nobody waits for the load any more, and others need the room"), now_s)


def unload(books: Books, event: UnloadRequested, now_s: float) -> None:
    """Order the replicas of a model to go that no operator keeps.

    A load that somebody waits for goes on, and what it brings goes when their requests have ended.
    """
    model = find_model(tuple(books.observed.nodes.values()), event.model_name)
    if model is None:
        _refuse(books, event, _why_not(books, None, event.model_name) or model_not_found(event.model_name))
        return
    if books.leadership is None:
        _refuse(books, event, unavailable(books.no_leader_why))
        return
    serving = sorted((runner for _, runner in serving_replicas(books, model.digest)), key=lambda one: one.placement_id)
    wishes = [constraints_of(books, model.name), *(keeping_of(books, one) for one in serving)]
    kept = max(len(serving) if one.pinned else one.replicas_min for one in wishes)
    ordered = sum(order_stop(books, one.placement_id, reason="unload", now_s=now_s) for one in serving[kept:])
    for job in books.jobs_by_age():
        if job.model_digest != model.digest or job.is_extra:
            continue
        if job.callers:
            job.keep_alive_ms = 0
        elif not kept:
            if job.state in ON_HOST:
                stop_load(books, job, reason="unload", now_s=now_s)
                ordered += 1
            fail(books, job, unavailable("the model was unloaded"), now_s)
    if not kept:
        forget_lost(books, model.digest)
    books.emit(AnswerUnloading(caller_id=event.caller_id, replicas=ordered))

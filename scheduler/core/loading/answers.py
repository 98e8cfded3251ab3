"""Answers to the callers of a load, and its end for all of them. Callers of a replica refresh its keep_alive."""

from scheduler.core.loading.expecting import eta_s, waits_for
from scheduler.core.state.cluster_state import ClusterState
from scheduler.core.state.effects import (
    AnswerFailed,
    AnswerLoading,
    AnswerQueued,
    AnswerReady,
)
from scheduler.core.state.load_jobs import ON_HOST, UNPLACED, LoadJob, LoadState
from scheduler.core.state.replicas import serving_replicas, will_do
from scheduler.core.values.desired import Phase
from scheduler.core.values.faults import Fault
from scheduler.core.values.view import RunnerView


def attach(state: ClusterState, job: LoadJob, caller_id: str, now_s: float) -> None:
    """Let a caller wait for a load, and tell it where that stands."""
    job.callers[caller_id] = None
    job.was_asked = True
    if job.state in ON_HOST:
        state.emit(loading_answer(state, job, (caller_id,), now_s))
    elif job.shown[0]:
        state.emit(_queued_answer(state, job, (caller_id,), now_s))


def tell_positions(state: ClusterState, now_s: float) -> None:
    """Send callers a changed position among the waiting loads, or a changed condition of their load."""
    waiting = [job for job in state.jobs_by_age() if job.state in UNPLACED]
    for position, job in enumerate(waiting, start=1):
        shown = position, waits_for(job)
        if job.shown != shown:
            job.shown = shown
            if job.callers:
                state.emit(_queued_answer(state, job, tuple(job.callers), now_s))


def _queued_answer(state: ClusterState, job: LoadJob, callers: tuple[str, ...], now_s: float) -> AnswerQueued:
    return AnswerQueued(
        callers=callers, position=job.shown[0], waits_for=waits_for(job), eta_s=eta_s(state, job, now_s)
    )


def loading_answer(state: ClusterState, job: LoadJob, callers: tuple[str, ...], now_s: float) -> AnswerLoading:
    """Return the progress of a load as an answer to these callers."""
    progress = job.progress
    return AnswerLoading(
        callers=callers,
        fraction=progress.fraction,
        bytes_done=progress.bytes_done,
        bytes_total=progress.bytes_total,
        waits_for=waits_for(job),
        eta_s=eta_s(state, job, now_s),
    )


def fail(state: ClusterState, job: LoadJob, fault: Fault, now_s: float) -> None:
    """End a load and answer all its callers with the reason. A start under way is stopped by the calling function."""
    job.move(LoadState.FAILED, now_s)
    state.jobs.pop(job.id, None)
    if state.leadership is not None:  # else its host goes on, and the next leader takes the start up
        _count_failure(state, job, now_s)
    state.note(
        "model.load_failed", model=job.model_name, reason=fault.reason, text=fault.message, attempts=job.failed.count,
        load_s=round(now_s - job.created_s, 3), callers=len(job.callers),
    )  # fmt: skip
    callers = job.take_callers()
    if callers:
        state.emit(AnswerFailed(callers=callers, fault=fault))


def _count_failure(state: ClusterState, job: LoadJob, now_s: float) -> None:
    """Count a failed load and drop its record; that of a lost replica is kept as lost, to be replaced again."""
    record, model = job.record, state.models[job.model_digest]
    if record is not None:
        model.failures = model.failures.once_more(now_s)
        is_stopped = record.placement_id in state.stops
        if job.own is None and not is_stopped:
            forget(state, record.placement_id)
        elif not is_stopped:
            state.save_record(record.in_phase(Phase.LOST))
    elif not job.was_asked:
        model.keep_failures = model.keep_failures.once_more(now_s)


def forget(state: ClusterState, placement_id: str) -> None:
    """Drop the record of a placement. A runner that appears all the same is adopted."""
    if placement_id in state.desired:
        state.remove_record(placement_id)


def end_served(state: ClusterState, now_s: float) -> None:
    """End the loads for which a replica has appeared by itself: its node is back, a former leader's load is done."""
    for job in state.jobs_by_age():
        if job.state in UNPLACED and not job.is_extra:
            _end_if_served(state, job, now_s)


def _end_if_served(state: ClusterState, job: LoadJob, now_s: float) -> None:
    asked = job.callers_ask
    found = [
        runner
        for node_id, runner in serving_replicas(state, job.model_digest)
        if will_do(state, node_id, runner, wanted_tokens=asked.context_tokens, options=asked.options)
    ]
    if not found:
        return
    if job.state is not LoadState.WAITING:
        job.move(LoadState.WAITING, now_s)
    job.move(LoadState.READY, now_s)
    del state.jobs[job.id]
    for runner in found:
        refresh_keep_alive(
            state, runner, job.keep_alive_ms if job.was_asked else None, load_only=job.load_only, now_s=now_s
        )
    callers = job.take_callers()
    if callers:
        state.emit(AnswerReady(callers=callers, model_name=job.model_name))


def refresh_keep_alive(
    state: ClusterState, runner: RunnerView, keep_alive_ms: int | None, *, load_only: bool, now_s: float
) -> None:
    """Record a caller that was routed to a replica or only had it loaded. `keep_alive_ms`: None: not set."""
    tracked = state.tracked.get(runner.placement_id)
    if tracked is None:
        return
    if load_only:
        tracked.renew(now_s)
    else:
        tracked.send_caller(runner, now_s)
    if keep_alive_ms is not None:
        tracked.ask(keep_alive_ms, runner)
        _write_keep_alive(state, runner, keep_alive_ms)


def _write_keep_alive(state: ClusterState, runner: RunnerView, keep_alive_ms: int) -> None:
    """Save it for the next leader. Nothing depends on it, so a store that is away is no reason to refuse."""
    record = state.desired.get(runner.placement_id)
    if record is None or state.leadership is None or record.generation != runner.generation:
        return
    newer = record.with_keep_alive(keep_alive_ms, runner.keep_alive_requests)
    if newer != record:
        state.save_record(newer)

"""From a written placement to a replica that is ready, or to the next attempt.

- Refused for memory: leave a tenth more of that device free, plan again on fresh figures, at most three times.
- The host did not answer: it may have acted; the same Start is sent again, which attaches to what runs.
- The file or the request is at fault: no second attempt.
- No progress for `load_stall_s`: stopped, and everybody told.
"""

from dataclasses import replace

from scheduler.core.answers import fail, loading_answer
from scheduler.core.books import Books
from scheduler.core.demand import NO_DEMAND
from scheduler.core.desired import Phase
from scheduler.core.effects import AnswerReady, CheckLeadership, DropLeadership, SaveDesired, StartRunner
from scheduler.core.events import DesiredSaved, DesiredSaveFailed, StartFailed
from scheduler.core.faults import MEMORY_REASONS, PLACEMENT_MISMATCH, STALE_FENCE, TRANSPORT_REASONS, Fault, unavailable
from scheduler.core.growth import superseded_by
from scheduler.core.ledger import Promise
from scheduler.core.load_jobs import ON_HOST, UNPLACED, LoadJob, LoadState
from scheduler.core.memory import GIB
from scheduler.core.stopping import order_blind_stop, order_stop
from scheduler.core.view import SERVING_STATES, STARTING_STATES, RunnerView

# A host reports once a second: after so long the figures are from after the failure.
FRESH_FIGURES_S = 1.2


def on_saved(books: Books, event: DesiredSaved, now_s: float) -> None:
    """The placement is written down: start it."""
    job = books.job_of(event.placement_id, event.generation)
    if job is not None and job.state is LoadState.PLANNED and event.phase is Phase.STARTING:
        begin_start(books, job, now_s)


def on_save_failed(books: Books, event: DesiredSaveFailed, now_s: float) -> None:
    """Nothing may be started that is not written down."""
    if event.fault.reason == STALE_FENCE:
        books.emit(CheckLeadership())
    job = books.job_of(event.placement_id, event.generation)
    if job is None or job.state is not LoadState.PLANNED or event.phase is not Phase.STARTING:
        return
    if event.fault.reason == STALE_FENCE and job.attempts < books.policy.load_attempts_max:
        _plan_again(job, now_s, pause_s=books.policy.restart_backoff_s)
    else:
        fail(books, job, event.fault, now_s)


def begin_start(books: Books, job: LoadJob, now_s: float) -> None:
    """The placement is written: tell the host. Also for a placement that a former leader wrote."""
    job.move(LoadState.STARTING, now_s)
    job.started_s = now_s
    _send_start(books, job, now_s)


def _send_start(books: Books, job: LoadJob, now_s: float) -> None:
    assert books.leadership is not None, "jobs end with leadership"
    assert job.record is not None, "written before started"
    node = books.node(job.record.node_id)
    if node is None:
        fail(books, job, unavailable(f"node {job.record.node_id} is gone"), now_s)
        return
    books.emit(
        StartRunner(
            fence=books.leadership.fence,
            leader_id=books.leadership.leader_id,
            address=node.address,
            record=job.record,
        )
    )


def take_report(books: Books, job: LoadJob, runner: RunnerView, now_s: float) -> None:
    """What the host, or the inventory, says about the runner of a job."""
    if job.state not in ON_HOST:
        return
    if runner.state in STARTING_STATES:
        if job.state is LoadState.STARTING:
            job.move(LoadState.LOADING, now_s)
        if job.advance(runner.load_fraction, runner.load_bytes_total, now_s) and job.callers:
            books.emit(loading_answer(job, tuple(job.callers)))
    elif runner.state in SERVING_STATES:
        _ready(books, job, runner, now_s)


def _ready(books: Books, job: LoadJob, runner: RunnerView, now_s: float) -> None:
    assert books.leadership is not None, "jobs end with leadership"
    assert job.record is not None, "written before started"
    if job.advance(1.0, runner.load_bytes_total, now_s) and job.callers:
        books.emit(loading_answer(job, tuple(job.callers)))
    job.move(LoadState.READY, now_s)
    del books.jobs[job.id]
    books.failures.pop(job.model_digest, None)
    record = replace(job.record, phase=Phase.RUNNING, keep_alive_ms=job.keep_alive_ms)
    books.desired[record.placement_id] = record
    books.emit(SaveDesired(fence=books.leadership.fence, record=record))
    books.note(
        "model.ready", model=job.model_name, placement=record.placement_id, node=record.node_id,
        load_s=round(now_s - job.created_s, 3), attempts=job.attempts + 1, callers=len(job.callers),
    )  # fmt: skip
    demand = books.demand.get(job.model_digest, NO_DEMAND)
    books.demand[job.model_digest] = demand.loaded_in(now_s - job.started_s)
    memo = books.memos.get(record.placement_id)
    if memo is not None:
        memo.asked_ms = job.keep_alive_ms
    callers = job.take_callers()
    if callers:
        if memo is not None:
            memo.send_caller(runner, now_s)
        books.emit(AnswerReady(callers=callers, model_name=job.model_name))
    size, kept = runner.layout.context_tokens, job.constraints.replicas_min
    for other in superseded_by(books, job.model_digest, record.placement_id, size, kept):
        books.replaced_at_s[job.model_digest] = now_s
        order_stop(books, other, reason="superseded", now_s=now_s)


def on_start_failed(books: Books, event: StartFailed, now_s: float) -> None:
    """A start was refused, the runner ended, or nobody knows."""
    fault = event.fault
    if fault.reason == STALE_FENCE:
        books.emit(DropLeadership(high_water=high_water(fault)))
    job = books.job_of(event.placement_id, event.generation)
    if job is None or job.state not in ON_HOST:
        return
    job.attempts += 1
    last = job.attempts >= books.policy.load_attempts_max
    pause_s = books.policy.restart_backoff_s * 2 ** (job.attempts - 1)
    books.observed.forget_start(event.placement_id)
    if fault.reason in TRANSPORT_REASONS:
        _start_again(books, job, fault, now_s, pause_s=pause_s, last=last)
    elif fault.reason in MEMORY_REASONS and not last:
        _leave_more_free(books, job, fault)
        _plan_again(job, now_s, pause_s=max(pause_s, FRESH_FIGURES_S))
    elif fault.reason in (PLACEMENT_MISMATCH, STALE_FENCE) and not last:
        _plan_again(job, now_s, pause_s=pause_s)
    else:
        fail(books, job, fault, now_s)


def high_water(fault: Fault) -> int:
    """The fence that the host has seen, from its refusal; 0 if it does not say."""
    numbers = [int(word) for word in fault.message.replace(",", " ").replace(".", " ").split() if word.isdecimal()]
    return max(numbers, default=0)


def _leave_more_free(books: Books, job: LoadJob, fault: Fault) -> None:
    """A tenth more of what is free stays free where the allocation failed; unknown where: everywhere it was planned."""
    assert job.placement is not None, "refused where it was placed"
    named = (
        [part.device_id for part in fault.attempted.devices if part.device_id] if fault.attempted is not None else []
    )
    for device_id in named or [need.device_id for need in job.placement.needs]:
        key = (job.placement.node_id, device_id)
        job.backoff[key] = job.backoff.get(key, 0.0) + books.policy.backoff_step


def _plan_again(job: LoadJob, now_s: float, *, pause_s: float) -> None:
    job.placement = None
    job.resend_at_s = None
    job.not_before_s = now_s + pause_s
    job.waits_for = "another attempt"
    job.move(LoadState.WAITING, now_s)


def _start_again(books: Books, job: LoadJob, fault: Fault, now_s: float, *, pause_s: float, last: bool) -> None:
    assert job.record is not None, "started what was written"
    found = books.observed.replica(job.record.placement_id)
    if found is not None and found[1].generation == job.record.generation and found[1].state in STARTING_STATES:
        job.attempts -= 1  # it loads; the inventory tells how it goes on
    elif last:
        fail(books, job, fault, now_s)
    else:
        job.resend_at_s = now_s + pause_s


def check_loads(books: Books, now_s: float) -> None:
    """What no event tells: loads that are due again, that stand still, or whose node is gone."""
    for job in books.jobs_by_age():
        if job.resend_at_s is not None and now_s >= job.resend_at_s and job.state in ON_HOST:
            job.resend_at_s = None
            if job.state is LoadState.LOADING:
                job.move(LoadState.STARTING, now_s)
            _send_start(books, job, now_s)
        elif now_s >= job.moved_s + books.policy.load_stall_s:
            _stalled(books, job, now_s)
        elif job.state in ON_HOST and now_s >= load_deadline_s(books, job):
            _over_deadline(books, job, now_s)
        elif job.state in ON_HOST and job.record is not None and books.node(job.record.node_id) is None:
            job.attempts += 1
            if job.attempts < books.policy.load_attempts_max:
                _plan_again(job, now_s, pause_s=0.0)
            else:
                fail(books, job, unavailable(f"node {job.record.node_id} is gone"), now_s)


def load_deadline_s(books: Books, job: LoadJob) -> float:
    """When a load ends however much it moves: a disk that delivers a byte a minute is of no use."""
    policy = books.policy
    return job.started_s + policy.load_deadline_s + policy.load_deadline_s_per_gib * job.progress.bytes_total / GIB


def _over_deadline(books: Books, job: LoadJob, now_s: float) -> None:
    text = f"loading took longer than {now_s - job.started_s:.0f} s - progress {job.progress.fraction:.2f}"
    stop_load(books, job, reason="deadline", now_s=now_s)
    fail(books, job, unavailable(text), now_s)


def _stalled(books: Books, job: LoadJob, now_s: float) -> None:
    if job.state in UNPLACED or job.record is None:
        fail(books, job, unavailable(f"timed out waiting for {job.waits_for or 'memory'}"), now_s)
        return
    text = f"timed out waiting for llama runner to start - progress {job.progress.fraction:.2f}"
    stop_load(books, job, reason="stalled", now_s=now_s)
    fail(books, job, unavailable(text), now_s)


def stop_load(books: Books, job: LoadJob, *, reason: str, now_s: float) -> None:
    """Kill a load's runner, reported or not."""
    assert job.record is not None, "only what was written was started"
    if order_stop(books, job.record.placement_id, reason=reason, now_s=now_s, forced=True) or job.placement is None:
        return
    taken = {need.device_id: need.total_bytes for need in job.placement.needs}
    promise = Promise(
        placement_id=job.record.placement_id, node_id=job.record.node_id, device_bytes=taken, starting=True
    )
    order_blind_stop(books, job.record, promise, reason=reason, now_s=now_s)

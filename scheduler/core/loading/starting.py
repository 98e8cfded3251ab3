"""From a written placement to a replica that is ready, or to the next attempt.

- Refused for memory: leave a tenth more of that device free, plan again on fresh figures, at most three times.
- The host did not answer: it may have acted; the same Start is sent again, which attaches to what runs.
- The file or the request is at fault: no second attempt.
- No progress for `load_stall_s`: stopped, and everybody told.
"""

from dataclasses import replace
from math import inf

from scheduler.core.books.books import Books
from scheduler.core.books.effects import AnswerReady, CheckLeadership, DropLeadership, SaveDesired, StartRunner
from scheduler.core.books.events import DesiredSaved, DesiredSaveFailed, LendFailed, StartFailed
from scheduler.core.books.growth import superseded_by
from scheduler.core.books.load_jobs import ON_HOST, UNPLACED, LoadJob, LoadState, Progress
from scheduler.core.books.promises import promises
from scheduler.core.books.residuals import learn
from scheduler.core.books.shared_files import keeping_of
from scheduler.core.loading.answers import fail, loading_answer
from scheduler.core.loading.expecting import size_bytes
from scheduler.core.loading.fetch_failures import is_of_fetch, on_fetch_failed, origin_for_load
from scheduler.core.planning.lending import LenderGone, lenders_of, loans_for
from scheduler.core.stopping.stopping import order_blind_stop, order_stop
from scheduler.core.values.demand import NO_DEMAND
from scheduler.core.values.desired import Phase
from scheduler.core.values.faults import (
    MEMORY_REASONS,
    PLACEMENT_MISMATCH,
    RUNNER_LOST,
    STALE_FENCE,
    TRANSPORT_REASONS,
    Fault,
    unavailable,
)
from scheduler.core.values.memory import GIB
from scheduler.core.values.view import SERVING_STATES, STARTING_STATES, RunnerView

# A host reports once a second: after so long the figures are from after the failure.
FRESH_FIGURES_S = 1.2
# Left free on the devices of a node that does not lend: more than all of it.
NOTHING_THERE = 1.0


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
        job.plan_again(now_s, pause_s=books.policy.restart_backoff_s)
    else:
        fail(books, job, event.fault, now_s)


def begin_start(books: Books, job: LoadJob, now_s: float) -> None:
    """The placement is written: tell the host. Also for a placement that a former leader wrote."""
    job.move(LoadState.STARTING, now_s)
    job.started_s = now_s
    job.is_fetching, job.fetch_fraction, job.fetched_s = False, 0.0, 0.0
    _send_start(books, job, now_s)


def _send_start(books: Books, job: LoadJob, now_s: float) -> None:
    assert books.leadership is not None, "jobs end with leadership"
    assert job.record is not None, "written before started"
    node = books.node(job.record.node_id)
    if node is None:
        fail(books, job, unavailable(f"node {job.record.node_id} is gone"), now_s)
        return
    try:
        loans = loans_for(
            job.record.layout,
            job.record.planned,
            books.observed.nodes,
            head=node,
            reference=(job.record.placement_id, job.record.generation),
            command=(books.leadership.fence, books.leadership.leader_id),
        )
    except LenderGone as gone:
        fault = unavailable(str(gone))
        failed = LendFailed(
            placement_id=job.record.placement_id, generation=job.record.generation, node_id=gone.node_id, fault=fault
        )
        on_lend_failed(books, failed, now_s)
        return
    job.origin = origin_for_load(books, job, node, job.record.layout.projector_digest)
    books.emit(
        StartRunner(
            fence=books.leadership.fence,
            leader_id=books.leadership.leader_id,
            address=node.address,
            record=job.record,
            loans=loans,
            caller_id=job.first_caller,
            origin=job.origin,
        )
    )


def take_report(books: Books, job: LoadJob, runner: RunnerView, now_s: float) -> None:
    """What the host, or the inventory, says about the runner of a job."""
    if job.state not in ON_HOST:
        return
    job.last_error_line = runner.last_error_line
    if runner.state in STARTING_STATES:
        if job.state is LoadState.STARTING:
            job.move(LoadState.LOADING, now_s)
        if job.is_fetching and not runner.is_fetching:
            job.fetched_s = now_s
        job.is_fetching = runner.is_fetching
        job.fetch_fraction = runner.load_fraction if runner.is_fetching else 0.0
        if job.advance(_progress_of(runner), now_s) and job.callers:
            books.emit(loading_answer(books, job, tuple(job.callers), now_s))
    elif runner.state in SERVING_STATES:
        _ready(books, job, runner, now_s)


def _progress_of(runner: RunnerView) -> Progress:
    return Progress(
        fraction=runner.load_fraction, bytes_done=runner.load_bytes_done, bytes_total=runner.load_bytes_total
    )


def _ready(books: Books, job: LoadJob, runner: RunnerView, now_s: float) -> None:
    assert books.leadership is not None, "jobs end with leadership"
    assert job.record is not None, "written before started"
    bytes_total = runner.load_bytes_total
    if job.advance(Progress(fraction=1.0, bytes_done=bytes_total, bytes_total=bytes_total), now_s) and job.callers:
        books.emit(loading_answer(books, job, tuple(job.callers), now_s))
    job.move(LoadState.READY, now_s)
    del books.jobs[job.id]
    books.failures.pop(job.model_digest, None)
    learn(books, job.record, runner)
    record = replace(job.record, phase=Phase.RUNNING, keep_alive_ms=job.keep_alive_ms, keep_alive_heard=0)
    books.desired[record.placement_id] = record
    books.emit(SaveDesired(fence=books.leadership.fence, record=record))
    books.note(
        "model.ready", model=job.model_name, placement=record.placement_id, node=record.node_id,
        load_s=round(now_s - job.created_s, 3), attempts=job.attempts + 1, callers=len(job.callers),
    )  # fmt: skip
    demand = books.demand.get(job.model_digest, NO_DEMAND)
    load_s = now_s - max(job.started_s, job.fetched_s)  # the next load here need not fetch
    books.demand[job.model_digest] = demand.loaded_in(load_s, size_bytes(books, job.model_digest))
    memo = books.memos.get(record.placement_id)
    if memo is not None:
        memo.asked_ms = job.keep_alive_ms
    callers = job.take_callers()
    if callers:
        if memo is not None and not job.load_only:
            memo.send_caller(runner, now_s)
        books.emit(AnswerReady(callers=callers, model_name=job.model_name))
    size, kept = runner.layout.context_tokens, keeping_of(books, runner).replicas_min
    for other in superseded_by(books, job.model_digest, record.placement_id, size, kept):
        books.replaced_at_s[job.model_digest] = now_s
        order_stop(books, other, reason="superseded", now_s=now_s)


def on_not_started(books: Books, event: StartFailed | LendFailed, now_s: float) -> None:
    """A start did not come to be, here or where something should have been lent for it."""
    if isinstance(event, LendFailed):
        on_lend_failed(books, event, now_s)
    else:
        on_start_failed(books, event, now_s)


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
    elif fault.reason in MEMORY_REASONS and job.placement is not None:
        _try_otherwise(books, job, fault, now_s, pause_s=pause_s)
    elif job.record is not None and is_of_fetch(job, fault):
        on_fetch_failed(books, job, job.record.node_id, fault, now_s)
    elif fault.reason in (PLACEMENT_MISMATCH, STALE_FENCE) and not last:
        job.plan_again(now_s, pause_s=pause_s)
    elif fault.reason == RUNNER_LOST and not last and job.record is not None and lenders_of(job.record.layout):
        job.plan_again(now_s, pause_s=max(pause_s, FRESH_FIGURES_S))  # most likely a lender went, not the runner
    else:
        fail(books, job, fault, now_s)


def on_lend_failed(books: Books, event: LendFailed, now_s: float) -> None:
    """A node does not lend: plan again, with less there if it was for memory, else without it."""
    fault = event.fault
    if fault.reason == STALE_FENCE:
        books.emit(DropLeadership(high_water=high_water(fault)))
    job = books.job_of(event.placement_id, event.generation)
    if job is None or job.state not in ON_HOST:
        return
    job.attempts += 1
    books.note("devices.not_lent", placement=event.placement_id, node=event.node_id, why=fault.message)
    if job.attempts >= books.policy.load_attempts_max:
        fail(books, job, fault, now_s)
        return
    assert job.record is not None, "written before started"
    step = books.policy.backoff_step if fault.reason in MEMORY_REASONS else NOTHING_THERE
    for part in job.record.layout.devices:
        if part.node_id == event.node_id:
            key = (event.node_id, part.device_id)
            job.backoff[key] = job.backoff.get(key, 0.0) + step
    pause_s = books.policy.restart_backoff_s * 2 ** (job.attempts - 1)
    job.plan_again(now_s, pause_s=max(pause_s, FRESH_FIGURES_S))


def high_water(fault: Fault) -> int:
    """The fence that the host has seen, from its refusal; 0 if it does not say."""
    numbers = [int(word) for word in fault.message.replace(",", " ").replace(".", " ").split() if word.isdecimal()]
    return max(numbers, default=0)


def _try_otherwise(books: Books, job: LoadJob, fault: Fault, now_s: float, *, pause_s: float) -> None:
    """There was less room than planned: another layout on fresh figures, and after some attempts another node."""
    assert job.record is not None, "started what was written"
    node_id = job.record.node_id
    tries = job.node_attempts[node_id] = job.node_attempts.get(node_id, 0) + 1
    job.story.append(f"attempt {job.attempts} on {node_id}: {fault.message}")
    job.last_fault = fault
    _take_attempted(job, fault)
    _leave_more_free(books, job, fault)
    if tries >= books.policy.load_attempts_max:
        job.failed_nodes[node_id] = f"{tries} loads failed here, at last: {fault.message}"
        pause_s = 0.0
    if len(job.failed_nodes) >= books.policy.load_nodes_max:
        fail(books, job, replace(fault, message="; ".join(job.story)), now_s)
        return
    job.plan_again(now_s, pause_s=max(pause_s, FRESH_FIGURES_S) if pause_s else 0.0)


def _take_attempted(job: LoadJob, fault: Fault) -> None:
    """Sizes that could not be allocated are what this layout takes, where they are larger than what was measured."""
    placement, attempted = job.placement, fault.attempted
    if placement is None or placement.key is None or attempted is None:
        return
    measured = placement.report
    if len(attempted.devices) != len(measured.devices):
        return
    pairs = zip((*attempted.devices, attempted.host), (*measured.devices, measured.host), strict=True)
    if any(tried.total_bytes > counted.total_bytes for tried, counted in pairs):
        job.attempted[placement.key] = attempted


def _leave_more_free(books: Books, job: LoadJob, fault: Fault) -> None:
    """A tenth more of what is free stays free where the allocation failed; unknown where: everywhere it was planned."""
    assert job.placement is not None, "refused where it was placed"
    attempted = fault.attempted.devices if fault.attempted is not None else ()
    named = [(part.node_id, part.device_id) for part in attempted if part.device_id]
    for node_id, device_id in named or [(need.node_id, need.device_id) for need in job.placement.needs]:
        key = (node_id or job.placement.node_id, device_id)
        job.backoff[key] = job.backoff.get(key, 0.0) + books.policy.backoff_step


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
                job.plan_again(now_s, pause_s=0.0)
            else:
                fail(books, job, unavailable(f"node {job.record.node_id} is gone"), now_s)


def load_deadline_s(books: Books, job: LoadJob) -> float:
    """When a load ends however much it moves: a disk that delivers a byte a minute is of no use.

    What comes over a network first takes as long as it takes, if it moves.
    """
    policy = books.policy
    if job.is_fetching:
        return inf
    return (
        max(job.started_s, job.fetched_s)
        + policy.load_deadline_s
        + policy.load_deadline_s_per_gib * job.progress.bytes_total / GIB
    )


def _over_deadline(books: Books, job: LoadJob, now_s: float) -> None:
    text = f"loading took longer than {now_s - job.started_s:.0f} s - {_how_far(job)}"
    stop_load(books, job, reason="deadline", now_s=now_s)
    fail(books, job, unavailable(text), now_s)


def _how_far(job: LoadJob) -> str:
    """For people: how far a load came, and the last error that its runner has logged."""
    return " - ".join(part for part in (f"progress {job.progress.fraction:.2f}", job.last_error_line) if part)


def _stalled(books: Books, job: LoadJob, now_s: float) -> None:
    if job.state in UNPLACED or job.record is None:
        fail(books, job, unavailable(f"timed out waiting for {job.waits_for or 'memory'}"), now_s)
        return
    text = f"timed out waiting for llama runner to start - {_how_far(job)}"
    stop_load(books, job, reason="stalled", now_s=now_s)
    fail(books, job, unavailable(text), now_s)


def give_up_start(books: Books, job: LoadJob, *, reason: str, now_s: float) -> None:
    """Stop what was started and plan anew, as another placement: the old one stays promised until it is gone."""
    stop_load(books, job, reason=reason, now_s=now_s)
    job.attempts += 1
    job.record = None
    job.was_reported = False
    job.plan_again(now_s, pause_s=0.0)


def stop_load(books: Books, job: LoadJob, *, reason: str, now_s: float) -> None:
    """Kill a load's runner, reported or not."""
    assert job.record is not None, "only what was written was started"
    if order_stop(books, job.record.placement_id, reason=reason, now_s=now_s, forced=True) or job.placement is None:
        return
    held = tuple(one for one in promises(books) if one.placement_id == job.record.placement_id)
    order_blind_stop(books, job.record, held, reason=reason, now_s=now_s)

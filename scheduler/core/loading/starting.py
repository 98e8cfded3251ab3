"""From a written placement to a replica that is ready, or to the next attempt.

- Refused for memory: leave a tenth more of that device free, plan again on fresh figures, at most three times.
- The host did not answer: it may have acted; the same Start is sent again, which attaches to what runs.
- The file or the request is at fault: no second attempt.
- The runner ended once it had loaded: a crash as of any replica, and the model is loaded again.
- No progress for `load_stall_s`: stopped, and all callers answered.
"""

from dataclasses import replace
from math import inf

from scheduler.core.loading.answers import fail, loading_answer
from scheduler.core.loading.crashes import see_crash
from scheduler.core.loading.expecting import size_bytes
from scheduler.core.loading.fetch_failures import is_of_fetch, name_origins, on_fetch_failed
from scheduler.core.planning.lending import LenderGone, lenders_of, loans_for
from scheduler.core.sizes.rooms import BACKOFF_STEP
from scheduler.core.state.cluster_state import NO_FAILURES, ClusterState
from scheduler.core.state.effects import AnswerReady, DropLeadership, StartRunner
from scheduler.core.state.growth import superseded_by
from scheduler.core.state.load_jobs import (
    LOAD_ATTEMPTS_MAX,
    LOAD_NODES_MAX,
    ON_HOST,
    RESTART_BACKOFF_S,
    UNPLACED,
    Attempt,
    LoadJob,
    LoadState,
    Progress,
)
from scheduler.core.state.promises import promises
from scheduler.core.state.residuals import learn
from scheduler.core.state.shared_files import keeping_of
from scheduler.core.stopping.stopping import order_blind_stop, order_stop
from scheduler.core.values.desired import DesiredPlacement, Phase
from scheduler.core.values.faults import (
    GONE,
    MEMORY_REASONS,
    PLACEMENT_MISMATCH,
    RUNNER_LOST,
    STALE_FENCE,
    TRANSPORT_REASONS,
    Fault,
    unavailable,
)
from scheduler.core.values.memory import GIB
from scheduler.core.values.view import SERVING_STATES, STARTING_STATES, RunnerState, RunnerView

LOAD_DEADLINE_S = 600.0  # however much it moves; and
LOAD_DEADLINE_S_PER_GIB = 120.0  # more

# A host reports once a second: after so long the figures are from after the failure.
FRESH_FIGURES_S = 1.2
# Left free on the devices of a node that does not lend: more than all of it.
NOTHING_THERE = 1.0


def on_saved(state: ClusterState, record: DesiredPlacement, now_s: float) -> None:
    """Start a placement that the store has saved."""
    job = state.job_of(record.placement_id, record.generation)
    if job is not None and job.state is LoadState.PLANNED and record.phase is Phase.STARTING:
        begin_start(state, job, now_s)


def on_save_failed(state: ClusterState, record: DesiredPlacement, fault: Fault, now_s: float) -> None:
    """Fail or retry a load whose placement could not be saved: nothing is started without a record."""
    job = state.job_of(record.placement_id, record.generation)
    if job is None or job.state is not LoadState.PLANNED or record.phase is not Phase.STARTING:
        return
    if fault.reason == STALE_FENCE and job.failed.count < LOAD_ATTEMPTS_MAX:
        job.plan_again(now_s, pause_s=RESTART_BACKOFF_S)
    else:
        fail(state, job, fault, now_s)


def begin_start(state: ClusterState, job: LoadJob, now_s: float) -> None:
    """Send a saved placement to its host. Also for a placement that a former leader wrote."""
    job.move(LoadState.STARTING, now_s)
    job.attempt = Attempt(sent_s=now_s)
    _send_start(state, job, now_s)


def _send_start(state: ClusterState, job: LoadJob, now_s: float) -> None:
    assert state.leadership is not None, "jobs end with leadership"
    assert job.record is not None, "written before started"
    node = state.node(job.record.node_id)
    if node is None:
        fail(state, job, unavailable(f"node {job.record.node_id} is gone"), now_s)
        return
    try:
        loans = loans_for(
            job.record.layout,
            job.record.planned,
            state.observed.nodes,
            head=node,
            reference=(job.record.placement_id, job.record.generation),
            command=(state.leadership.fence, state.leadership.leader_id),
        )
    except LenderGone as gone:
        on_start_failed(state, job, replace(unavailable(str(gone)), lender_id=gone.node_id), now_s)
        return
    name_origins(state, job, node, job.record.layout)
    state.emit(
        StartRunner(
            fence=state.leadership.fence,
            leader_id=state.leadership.leader_id,
            address=node.address,
            record=job.record,
            loans=loans,
            caller_id=job.first_caller,
            origin=job.origin,
            draft_origin=job.draft_origin,
            is_extra=job.is_extra,
        )
    )


def take_report(state: ClusterState, job: LoadJob, runner: RunnerView, now_s: float) -> None:
    """Take in a report of a job's runner, from its host or the inventory."""
    if job.state not in ON_HOST:
        return
    attempt = job.attempt
    attempt.last_error_line = runner.last_error_line
    attempt.has_loaded = runner.load_fraction == 1.0 and not runner.is_fetching
    if runner.state in STARTING_STATES:
        if job.state is LoadState.STARTING:
            job.move(LoadState.LOADING, now_s)
        if attempt.is_fetching and not runner.is_fetching:
            attempt.fetched_s = now_s
        attempt.is_fetching = runner.is_fetching
        attempt.fetch_fraction = runner.load_fraction if runner.is_fetching else 0.0
        if job.advance(_progress_of(runner), now_s) and job.callers:
            state.emit(loading_answer(state, job, tuple(job.callers), now_s))
    elif runner.state in SERVING_STATES:
        _ready(state, job, runner, now_s)
    elif runner.state is RunnerState.ERROR:
        on_start_failed(state, job, runner.fault or GONE, now_s)


def _progress_of(runner: RunnerView) -> Progress:
    return Progress(
        fraction=runner.load_fraction, bytes_done=runner.load_bytes_done, bytes_total=runner.load_bytes_total
    )


def _ready(state: ClusterState, job: LoadJob, runner: RunnerView, now_s: float) -> None:
    assert state.leadership is not None, "jobs end with leadership"
    assert job.record is not None, "written before started"
    bytes_total = runner.load_bytes_total
    if job.advance(Progress(fraction=1.0, bytes_done=bytes_total, bytes_total=bytes_total), now_s) and job.callers:
        state.emit(loading_answer(state, job, tuple(job.callers), now_s))
    job.move(LoadState.READY, now_s)
    del state.jobs[job.id]
    model = state.models[job.model_digest]
    model.failures = NO_FAILURES
    learn(state, job.record, runner)
    record = replace(job.record, phase=Phase.RUNNING, keep_alive_ms=job.keep_alive_ms, keep_alive_heard=0)
    state.save_record(record)
    state.note(
        "model.ready", model=job.model_name, placement=record.placement_id, node=record.node_id,
        load_s=round(now_s - job.created_s, 3), attempts=job.failed.count + 1, callers=len(job.callers),
    )  # fmt: skip
    load_s = now_s - job.attempt.loading_since_s  # the next load here need not fetch
    model.demand = model.demand.loaded_in(load_s, size_bytes(state, job.model_digest))
    tracked = state.tracked.get(record.placement_id)
    if tracked is not None:
        tracked.asked_ms = job.keep_alive_ms
    callers = job.take_callers()
    if callers:
        if tracked is not None and not job.load_only:
            tracked.send_caller(runner, now_s)
        state.emit(AnswerReady(callers=callers, model_name=job.model_name))
    size, kept = runner.layout.context_tokens, keeping_of(state, runner).replicas_min
    for other in superseded_by(state, job.model_digest, record.placement_id, size, kept):
        model.replaced_at_s = now_s
        order_stop(state, other, reason="superseded", now_s=now_s)
    if job.moves:  # its answers go on at the new one, from their saved states
        order_stop(state, job.moves, reason=job.reason, now_s=now_s, forced=True)


def on_start_failed(state: ClusterState, job: LoadJob | None, fault: Fault, now_s: float) -> None:
    """Handle a start that was refused, also by a lender, that ended, or has an unknown outcome."""
    if fault.reason == STALE_FENCE:
        state.emit(DropLeadership(high_water=fault.high_water))
    if job is None or job.record is None or job.state not in ON_HOST:
        return
    job.failed.count += 1
    last = job.failed.count >= LOAD_ATTEMPTS_MAX
    pause_s = RESTART_BACKOFF_S * 2 ** (job.failed.count - 1)
    state.observed.forget_start(job.record.placement_id)
    if fault.lender_id:
        _lend_failed(state, job, fault, now_s, pause_s=pause_s, last=last)
    elif fault.reason in TRANSPORT_REASONS:
        _start_again(state, job, fault, now_s, pause_s=pause_s, last=last)
    elif fault.reason in MEMORY_REASONS and job.placement is not None:
        _try_otherwise(state, job, fault, now_s, pause_s=pause_s)
    elif is_of_fetch(job, fault):
        on_fetch_failed(state, job, job.record.node_id, fault, now_s)
    elif fault.reason in (PLACEMENT_MISMATCH, STALE_FENCE) and not last:
        job.plan_again(now_s, pause_s=pause_s)
    elif fault.reason == RUNNER_LOST and not last and lenders_of(job.record.layout):
        job.plan_again(now_s, pause_s=max(pause_s, FRESH_FIGURES_S))  # most likely a lender went, not the runner
    elif job.attempt.has_loaded:
        _crashed(state, job, fault, now_s, last=last)
    else:
        fail(state, job, fault, now_s)


def _crashed(state: ClusterState, job: LoadJob, fault: Fault, now_s: float, *, last: bool) -> None:
    """Count the end of a runner that had loaded as a crash; the next attempt begins after the pause of crashes."""
    assert job.record is not None, "started what was written"
    see_crash(state, job.record, fault, now_s)
    if last:
        fail(state, job, fault, now_s)
    else:
        job.plan_again(now_s, pause_s=0.0)


def _lend_failed(state: ClusterState, job: LoadJob, fault: Fault, now_s: float, *, pause_s: float, last: bool) -> None:
    """Plan again after a node did not lend: with less there if it lacked memory, else without it."""
    assert job.record is not None, "written before started"
    lender_id = fault.lender_id
    state.note("devices.not_lent", placement=job.record.placement_id, node=lender_id, why=fault.message)
    if last:
        fail(state, job, fault, now_s)
        return
    step = BACKOFF_STEP if fault.reason in MEMORY_REASONS else NOTHING_THERE
    for part in job.record.layout.devices:
        if part.node_id == lender_id:
            job.failed.leave_free(lender_id, part.device_id, step)
    job.plan_again(now_s, pause_s=max(pause_s, FRESH_FIGURES_S))


def _try_otherwise(state: ClusterState, job: LoadJob, fault: Fault, now_s: float, *, pause_s: float) -> None:
    """Plan another layout on fresh figures after a lack of memory; after some attempts, on another node."""
    assert job.record is not None, "started what was written"
    node_id = job.record.node_id
    failed = job.failed
    failed.by_node[node_id] += 1
    failed.add(node_id, fault)
    _take_attempted(job, fault)
    _leave_more_free(job, fault)
    if failed.by_node[node_id] >= LOAD_ATTEMPTS_MAX:
        failed.nodes[node_id] = f"{failed.by_node[node_id]} loads failed here, at last: {fault.message}"
        pause_s = 0.0
    if len(failed.nodes) >= LOAD_NODES_MAX:
        fail(state, job, failed.as_fault(fault), now_s)
        return
    job.plan_again(now_s, pause_s=max(pause_s, FRESH_FIGURES_S) if pause_s else 0.0)


def _take_attempted(job: LoadJob, fault: Fault) -> None:
    """Record the sizes that could not be allocated as those of this layout, if they exceed the measured ones."""
    placement, attempted = job.placement, fault.attempted
    if placement is None or placement.key is None or attempted is None:
        return
    measured = placement.report
    if len(attempted.devices) != len(measured.devices):
        return
    pairs = zip((*attempted.devices, attempted.host), (*measured.devices, measured.host), strict=True)
    if any(tried.total_bytes > counted.total_bytes for tried, counted in pairs):
        job.failed.sizes[placement.key] = attempted


def _leave_more_free(job: LoadJob, fault: Fault) -> None:
    """Leave a tenth more free where the allocation failed; if that is unknown, on every planned device."""
    assert job.placement is not None, "refused where it was placed"
    attempted = fault.attempted.devices if fault.attempted is not None else ()
    named = [(part.node_id, part.device_id) for part in attempted if part.device_id]
    for node_id, device_id in named or [(need.node_id, need.device_id) for need in job.placement.needs]:
        job.failed.leave_free(node_id or job.placement.node_id, device_id, BACKOFF_STEP)


def _start_again(state: ClusterState, job: LoadJob, fault: Fault, now_s: float, *, pause_s: float, last: bool) -> None:
    assert job.record is not None, "started what was written"
    found = state.observed.replica(job.record.placement_id)
    if found is not None and found[1].generation == job.record.generation and found[1].state in STARTING_STATES:
        job.failed.count -= 1  # it loads; the inventory reports the rest
    elif last:
        fail(state, job, fault, now_s)
    else:
        job.attempt.resend_at_s = now_s + pause_s


def check_loads(state: ClusterState, now_s: float) -> None:
    """Advance loads without an event: due again, stalled, over their deadline, or on a node that is gone."""
    for job in state.jobs_by_age():
        resend_at_s = job.attempt.resend_at_s
        if resend_at_s is not None and now_s >= resend_at_s and job.state in ON_HOST:
            job.attempt.resend_at_s = None
            if job.state is LoadState.LOADING:
                job.move(LoadState.STARTING, now_s)
            _send_start(state, job, now_s)
        elif now_s >= job.moved_s + state.policy.load_stall_s:
            _stalled(state, job, now_s)
        elif job.state in ON_HOST and now_s >= load_deadline_s(job):
            _over_deadline(state, job, now_s)
        elif job.state in ON_HOST and job.record is not None and state.node(job.record.node_id) is None:
            job.failed.count += 1
            if job.failed.count < LOAD_ATTEMPTS_MAX:
                job.plan_again(now_s, pause_s=0.0)
            else:
                fail(state, job, unavailable(f"node {job.record.node_id} is gone"), now_s)


def load_deadline_s(job: LoadJob) -> float:
    """Return the time at which a load ends however much it moves: a disk that delivers a byte a minute is of no use.

    What comes over a network first takes as long as it takes, if it moves.
    """
    if job.attempt.is_fetching:
        return inf
    return job.attempt.loading_since_s + LOAD_DEADLINE_S + LOAD_DEADLINE_S_PER_GIB * job.progress.bytes_total / GIB


def _over_deadline(state: ClusterState, job: LoadJob, now_s: float) -> None:
    text = f"loading took longer than {now_s - job.attempt.sent_s:.0f} s - {_how_far(job)}"
    stop_load(state, job, reason="deadline", now_s=now_s)
    fail(state, job, unavailable(text), now_s)


def _how_far(job: LoadJob) -> str:
    """Return the progress of a load as text, with the last error that its runner has logged."""
    return " - ".join(part for part in (f"progress {job.progress.fraction:.2f}", job.attempt.last_error_line) if part)


def _stalled(state: ClusterState, job: LoadJob, now_s: float) -> None:
    if job.state in UNPLACED or job.record is None:
        fail(state, job, unavailable(f"timed out waiting for {job.waits_for or 'memory'}"), now_s)
        return
    text = f"timed out waiting for llama runner to start - {_how_far(job)}"
    stop_load(state, job, reason="stalled", now_s=now_s)
    fail(state, job, unavailable(text), now_s)


def give_up_start(state: ClusterState, job: LoadJob, *, reason: str, now_s: float) -> None:
    """Stop what was started and plan anew, as another placement: the old one stays promised until it is gone."""
    stop_load(state, job, reason=reason, now_s=now_s)
    job.failed.count += 1
    job.record = None
    job.plan_again(now_s, pause_s=0.0)


def stop_load(state: ClusterState, job: LoadJob, *, reason: str, now_s: float) -> None:
    """Kill a load's runner, reported or not."""
    assert job.record is not None, "only what was written was started"
    if order_stop(state, job.record.placement_id, reason=reason, now_s=now_s, forced=True) or job.placement is None:
        return
    held = tuple(one for one in promises(state) if one.placement_id == job.record.placement_id)
    order_blind_stop(state, job.record, held, reason=reason, now_s=now_s)

"""Holds what is wanted against what hosts report. Runners are the truth about what is loaded.

- Reported and not wanted: adopted. The store forgot, or another leader started it.
- Wanted as starting, nobody loads it: Start is sent again with the same id, which attaches to what runs.
- Wanted as running and gone from live reports: lost. Nothing restarts it unasked; the next load is its next generation.
- Wanted as stopping: stopped again.
"""

import math

from common.errors import InvalidRequest
from scheduler.core.books.aliases import take_over as take_over_aliases
from scheduler.core.books.books import Books
from scheduler.core.books.device_load import see_work
from scheduler.core.books.effects import AskRunner, RemoveDesired, SaveDesired
from scheduler.core.books.events import LeadershipGained, StartFailed
from scheduler.core.books.learning import take_over
from scheduler.core.books.load_jobs import ON_HOST, LoadJob
from scheduler.core.books.model_constraints import load_constraints
from scheduler.core.books.promises import promises
from scheduler.core.books.replicas import serving_replicas
from scheduler.core.books.shared_files import keeping_of
from scheduler.core.draining import nodes_of
from scheduler.core.draining import take_over as take_over_drains
from scheduler.core.loading.crashes import see_crash
from scheduler.core.loading.starting import begin_start, on_start_failed, take_report
from scheduler.core.planning.candidates import Placement
from scheduler.core.room.keep_cost import default_keep_alive_ms
from scheduler.core.sizes.ledger import Kept, Need, needs_of
from scheduler.core.sizes.rooms import Rooms
from scheduler.core.stopping.stopping import advance_stop, order_stop
from scheduler.core.values.asked import NOTHING_ASKED, Asked
from scheduler.core.values.constraints import Constraints
from scheduler.core.values.desired import DesiredPlacement, Phase
from scheduler.core.values.faults import Fault
from scheduler.core.values.keep_alive import ReplicaMemo, expires_at_s
from scheduler.core.values.view import SERVING_STATES, STARTING_STATES, NodeView, RunnerState, RunnerView

GONE = Fault(reason="runner_lost", message="model runner has unexpectedly stopped")


def gain(books: Books, event: LeadershipGained, now_s: float) -> None:
    """Lead from here on. What this scheduler itself wanted a moment ago outlives a store that forgot it."""
    stored = {record.placement_id: record for record in event.desired if record.placement_id not in books.forgotten}
    for record in event.desired:
        if record.placement_id in books.forgotten:
            books.emit(RemoveDesired(fence=event.fence, placement_id=record.placement_id))
    if books.leadership is not None:
        for placement_id, record in books.desired.items():
            if placement_id not in stored:
                books.emit(SaveDesired(fence=event.fence, record=record))
        stored |= books.desired
    books.desired = stored
    books.constraints = dict(event.constraints)
    take_over_drains(books, event.drains, event.fence, now_s)
    take_over(books, event.margins, event.fence)
    take_over_aliases(books, event.aliases, event.fence)
    for placement_id, record in stored.items():
        memo = books.memos.get(placement_id)
        if memo is not None:
            memo.take_over(record)


def see_replicas(books: Books, now_s: float) -> None:
    """Remember since when each replica serves and idles."""
    for node_id, runner in books.observed.replicas():
        if runner.state in SERVING_STATES and node_id not in books.observed.silent:
            see_replica(books, runner, now_s)


def forget_gone(books: Books) -> None:
    """Remember nothing of replicas that are not there any more. Until then, how long those that crashed had served."""
    present = {(runner.placement_id, runner.generation) for _, runner in books.observed.replicas()}
    for placement_id, memo in list(books.memos.items()):
        if (placement_id, memo.generation) not in present:
            del books.memos[placement_id]


def see_replica(books: Books, runner: RunnerView, now_s: float) -> None:
    """Take in one fresh report."""
    see_work(books, runner, now_s)
    memo = books.memos.get(runner.placement_id)
    if memo is None or memo.generation != runner.generation:
        record = books.desired.get(runner.placement_id)
        memo = ReplicaMemo(
            generation=runner.generation,
            ready_since_s=now_s - runner.idle_ms / 1000,
            idle_since_s=None,
            counted_requests=runner.requests_total,
        )
        if record is not None:
            memo.take_over(record)
        books.memos[runner.placement_id] = memo
        job = books.job_of(runner.placement_id, runner.generation)
        if runner.requests_total == 0 and not (job is not None and job.load_only):
            # Somebody had it loaded, whose request is on the way: gateways see the route and leave the load's queue.
            memo.send_caller(runner, now_s)
    memo.see(runner, now_s)


def ask_runners(books: Books, now_s: float) -> None:
    """The silence of a host is a suspicion: whoever may live on is asked before its route is withdrawn."""
    for runner in books.observed.runners_to_ask(now_s):
        books.emit(
            AskRunner(
                address=runner.address,
                placement_id=runner.placement_id,
                generation=runner.generation,
                incarnation=runner.incarnation,
            )
        )


def follow_loads(books: Books, now_s: float) -> None:
    """The inventory also tells how loads go, if a start's stream is lost."""
    present = set()
    for _, runner in list(books.observed.replicas()):
        job = books.job_of(runner.placement_id, runner.generation)
        if job is None:
            continue
        present.add(job.id)
        job.was_reported = True
        if runner.state is RunnerState.ERROR:
            failed = StartFailed(
                placement_id=runner.placement_id, generation=runner.generation, fault=runner.fault or GONE
            )
            on_start_failed(books, failed, now_s)
        else:
            take_report(books, job, runner, now_s)

    for job in books.jobs_by_age():
        if job.state in ON_HOST and job.was_reported and job.id not in present:
            _runner_vanished(books, job, now_s)


def _runner_vanished(books: Books, job: LoadJob, now_s: float) -> None:
    assert job.record is not None, "reported by the host it was placed on"
    if books.observed.is_current(job.record.node_id):
        gone = StartFailed(placement_id=job.record.placement_id, generation=job.record.generation, fault=GONE)
        on_start_failed(books, gone, now_s)


def reconcile(books: Books, now_s: float) -> None:
    """Close every gap between wanted and reported that live reports show."""
    if books.leadership is None or not books.observed.was_seen:
        return
    loading = {job.record.placement_id for job in books.jobs.values() if job.record is not None}
    _adopt(books, loading)
    for record in list(books.desired.values()):
        if record.placement_id in loading or record.placement_id in books.stops:
            continue
        if books.node(record.node_id) is None:
            _forget_in_time(books, record, now_s)
            continue
        books.desired_unseen_since_s.pop(record.placement_id, None)
        found = books.observed.replica(record.placement_id)
        runner = found[1] if found is not None and found[1].generation >= record.generation else None
        match record.phase:
            case Phase.STARTING:
                _resume_start(books, record, runner, now_s)
            case Phase.RUNNING:
                _check_running(books, record, runner, now_s)
            case Phase.STOPPING:
                _resume_stop(books, record, runner, now_s)
            case Phase.LOST:
                books.lost_since_s.setdefault(record.placement_id, now_s)


def _save(books: Books, record: DesiredPlacement) -> None:
    assert books.leadership is not None, "only a leader writes"
    books.desired[record.placement_id] = record
    books.emit(SaveDesired(fence=books.leadership.fence, record=record))


def _remove(books: Books, record: DesiredPlacement) -> None:
    assert books.leadership is not None, "only a leader writes"
    books.forget_desired(record.placement_id)
    books.emit(RemoveDesired(fence=books.leadership.fence, placement_id=record.placement_id))


def _adopt(books: Books, loading: set[str]) -> None:
    for node_id, runner in books.observed.replicas():
        if runner.placement_id in loading or runner.placement_id in books.stops or not runner.placement_id:
            continue
        known = books.desired.get(runner.placement_id)
        if known is not None and known.generation >= runner.generation:
            continue
        if runner.state in SERVING_STATES:
            books.note("replica.adopted", model=runner.model_name, placement=runner.placement_id, node=node_id)
            _save(
                books,
                DesiredPlacement(
                    placement_id=runner.placement_id,
                    generation=runner.generation,
                    phase=Phase.RUNNING,
                    node_id=node_id,
                    model_name=runner.model_name,
                    model_digest=runner.model_digest,
                    layout=runner.layout,
                    asked=runner.asked,
                ),
            )


def _forget_in_time(books: Books, record: DesiredPlacement, now_s: float) -> None:
    since_s = books.desired_unseen_since_s.setdefault(record.placement_id, now_s)
    if now_s >= since_s + books.policy.node_forgotten_s and books.observed.frozen_since_s is None:
        books.desired_unseen_since_s.pop(record.placement_id)
        books.note("replica.forgotten", model=record.model_name, placement=record.placement_id, node=record.node_id)
        _remove(books, record)


def _resume_start(books: Books, record: DesiredPlacement, runner: RunnerView | None, now_s: float) -> None:
    if runner is not None and runner.state in SERVING_STATES:
        _save(books, record.in_phase(Phase.RUNNING))
        return
    if (runner is not None and runner.state not in STARTING_STATES) or not books.observed.is_current(record.node_id):
        return
    node = books.node(record.node_id)
    needs = _needs(books, node, record)
    is_drained = not books.drains.keys().isdisjoint(nodes_of(record.node_id, record.layout))
    has_room = runner is not None or (not is_drained and _has_room(books, node, needs or ()))
    if needs is None or record.planned is None or not has_room:
        _remove(books, record)
        return
    books.jobs_begun += 1
    asked, constraints = _wishes(books, record)
    job = LoadJob(
        id=books.jobs_begun,
        model_name=record.model_name,
        model_digest=record.model_digest,
        context_tokens=record.layout.context_tokens,
        keep_alive_ms=record.keep_alive_ms,
        created_s=now_s,
        moved_s=now_s,
        wanted_tokens=asked.context_tokens,
        options=asked.options,
        constraints=constraints,
        record=record,
        placement=Placement(
            node_id=record.node_id,
            layout=record.layout,
            report=record.planned,
            needs=needs,
            victims=(),
            candidates=(),
        ),
    )
    books.jobs[job.id] = job
    books.note("load.resumed", model=record.model_name, placement=record.placement_id, node=record.node_id)
    begin_start(books, job, now_s)


def _wishes(books: Books, record: DesiredPlacement) -> tuple[Asked, Constraints]:
    """What the load is to be planned with if this start fails: as it was asked for, if that may still be."""
    try:
        return record.asked, load_constraints(books, record.model_name, record.asked.options)
    except InvalidRequest:  # something else was set for the model since
        return NOTHING_ASKED, load_constraints(books, record.model_name)


def _needs(books: Books, node: NodeView | None, record: DesiredPlacement) -> tuple[Need, ...] | None:
    if node is None or record.planned is None:
        return None
    file = node.model(record.model_digest)
    architecture = file.facts.architecture if file is not None and file.facts is not None else ""
    kept = Kept(policy=books.policy, margins=books.margins, model_digest=record.model_digest, architecture=architecture)
    return needs_of(node, record.layout, record.planned, kept, books.observed.nodes)


def _has_room(books: Books, node: NodeView | None, needs: tuple[Need, ...]) -> bool:
    """A start that nobody has seen was planned on other figures: by now something else may lie there."""
    rooms = Rooms(policy=books.policy, promises=tuple(promises(books)))
    return node is not None and not rooms.short_pools(needs, books.observed.nodes)


def _check_running(books: Books, record: DesiredPlacement, runner: RunnerView | None, now_s: float) -> None:
    if runner is not None and runner.state is not RunnerState.ERROR:
        return
    if books.observed.is_current(record.node_id):
        fault = runner.fault if runner is not None and runner.fault is not None else GONE
        books.note(
            "replica.lost", model=record.model_name, placement=record.placement_id, node=record.node_id,
            reason=fault.reason, text=fault.message,
        )  # fmt: skip
        see_crash(books, record, fault, now_s)
        books.lost_since_s[record.placement_id] = now_s
        _save(books, record.in_phase(Phase.LOST))


def _resume_stop(books: Books, record: DesiredPlacement, runner: RunnerView | None, now_s: float) -> None:
    if not books.observed.is_current(record.node_id):
        return
    if runner is None or runner.state is RunnerState.ERROR:
        _remove(books, record)
    else:
        order_stop(books, record.placement_id, reason="resumed", now_s=now_s)


def expire_idle(books: Books, now_s: float) -> None:
    """Stop what has been idle for as long as it was asked to stay. A frozen view expires nothing."""
    for node_id, runner in list(books.observed.replicas()):
        if runner.state not in SERVING_STATES or not books.observed.is_current(node_id):
            continue
        expiry_s = expiry_of(books, runner)
        if expiry_s is not None and now_s >= expiry_s:
            order_stop(books, runner.placement_id, reason="keep_alive", now_s=now_s)


def expiry_of(books: Books, runner: RunnerView) -> float | None:
    """When keep_alive ends for a replica. None: it is busy or not ready. Infinite: it shall stay."""
    memo = books.memos.get(runner.placement_id)
    if memo is None or runner.state not in SERVING_STATES:
        return None
    wishes = keeping_of(books, runner)
    if wishes.pinned:
        return math.inf
    if wishes.replicas_min:
        serving = sum(1 for _ in serving_replicas(books, runner.model_digest))
        if serving <= wishes.replicas_min:
            return math.inf
    default_ms = default_keep_alive_ms(books, wishes)
    return expires_at_s(memo, runner, default_ms=default_ms, grace_s=books.policy.dwell_s_min)


def advance_stops(books: Books, now_s: float) -> None:
    """Take every stop as far as it comes now."""
    for stop in list(books.stops.values()):
        advance_stop(books, stop, now_s)

"""Holds what is wanted against what hosts report. Runners are the truth about what is loaded.

- Reported and not wanted: adopted. The store forgot, or another leader started it.
- Wanted as starting, no load for it: Start is sent again with the same id, which attaches to what runs.
- Wanted as running and gone from live reports: lost. Nothing restarts it unasked; the next load is its next generation.
- Wanted as stopping: stopped again.
"""

import math

from common.errors import InvalidRequest
from scheduler.core.draining import take_over as take_over_drains
from scheduler.core.loading.crashes import see_crash
from scheduler.core.loading.starting import begin_start, on_start_failed, take_report
from scheduler.core.planning.candidates import Placement
from scheduler.core.planning.lending import nodes_of
from scheduler.core.room.evictable import DWELL_S_MIN
from scheduler.core.room.keep_cost import default_keep_alive_ms
from scheduler.core.sizes.ledger import Kept, LentTo, Need, Promise, needs_of
from scheduler.core.sizes.rooms import Rooms
from scheduler.core.state.aliases import take_over as take_over_aliases
from scheduler.core.state.cluster_state import ClusterState, lost_keys
from scheduler.core.state.device_load import see_work
from scheduler.core.state.effects import AskRunner, RemoveDesired, SaveConstraints, SaveDesired
from scheduler.core.state.events import LeadershipGained
from scheduler.core.state.load_jobs import ON_HOST, LoadJob, LoadTarget
from scheduler.core.state.model_constraints import load_constraints
from scheduler.core.state.promises import promises, start_promises
from scheduler.core.state.replicas import serving_replicas
from scheduler.core.state.residuals import take_over
from scheduler.core.state.shared_files import keeping_of
from scheduler.core.stopping.stopping import advance_stop, order_stop
from scheduler.core.values.asked import NOTHING_ASKED
from scheduler.core.values.desired import DesiredPlacement, Phase, record_of
from scheduler.core.values.faults import GONE
from scheduler.core.values.keep_alive import TrackedReplica, expires_at_s
from scheduler.core.values.view import SERVING_STATES, STARTING_STATES, NodeView, RunnerState, RunnerView

NODE_FORGOTTEN_S = 60.0  # until the placements of an unknown node are forgotten


def gain(state: ClusterState, event: LeadershipGained, now_s: float) -> None:
    """Take over leadership. What this scheduler has written while it led outlives a store that lost it."""
    leads = state.leadership is not None
    stored = {record.placement_id: record for record in event.desired if record.placement_id not in state.forgotten}
    for record in event.desired:
        if record.placement_id in state.forgotten:
            state.emit(RemoveDesired(fence=event.fence, placement_id=record.placement_id))
    if leads:
        for placement_id, record in state.desired.items():
            if stored.get(placement_id) != record:
                state.emit(SaveDesired(fence=event.fence, record=record))
        stored |= state.desired
    state.desired = stored
    own = state.constraints if leads else event.constraints
    for name in lost_keys(own, event.constraints):
        state.emit(SaveConstraints(fence=event.fence, caller_id="", model_name=name, constraints=own.get(name)))
    state.constraints = dict(own)
    take_over_drains(state, event.drains, event.fence, now_s)
    take_over(state, event.margins, event.fence)
    take_over_aliases(state, event.aliases, event.fence)
    for placement_id, record in stored.items():
        tracked = state.tracked.get(placement_id)
        if tracked is not None:
            tracked.take_over(record)


def see_replicas(state: ClusterState, now_s: float) -> None:
    """Remember since when each replica serves and idles."""
    for node_id, runner in state.observed.replicas():
        if runner.state in SERVING_STATES and node_id not in state.observed.silent:
            see_replica(state, runner, now_s)


def forget_gone(state: ClusterState) -> None:
    """Remember nothing of replicas that are not there any more. Until then, how long those that crashed had served."""
    present = {(runner.placement_id, runner.generation) for _, runner in state.observed.replicas()}
    for placement_id, tracked in list(state.tracked.items()):
        if (placement_id, tracked.generation) not in present:
            del state.tracked[placement_id]


def see_replica(state: ClusterState, runner: RunnerView, now_s: float) -> None:
    """Take in one fresh report."""
    see_work(state, runner, now_s)
    tracked = state.tracked.get(runner.placement_id)
    if tracked is None or tracked.generation != runner.generation:
        record = state.desired.get(runner.placement_id)
        tracked = TrackedReplica(
            generation=runner.generation,
            ready_since_s=now_s - runner.idle_ms / 1000,
            idle_since_s=None,
            counted_requests=runner.requests_total,
        )
        if record is not None:
            tracked.take_over(record)
        state.tracked[runner.placement_id] = tracked
        job = state.job_of(runner.placement_id, runner.generation)
        if runner.requests_total == 0 and not (job is not None and job.load_only):
            # A request for it is on the way: gateways see the route and leave the load's queue.
            tracked.send_caller(runner, now_s)
    tracked.see(runner, now_s)


def ask_runners(state: ClusterState, now_s: float) -> None:
    """Probe the runners of a silent host before their routes are withdrawn: they may live on without it."""
    for node_id, runner in state.observed.runners_to_ask(now_s):
        state.emit(AskRunner(node_id=node_id, runner=runner))


def follow_loads(state: ClusterState, now_s: float) -> None:
    """Advance loads by the inventory too, in case the stream of a start is lost."""
    present = set()
    for _, runner in list(state.observed.replicas()):
        job = state.job_of(runner.placement_id, runner.generation)
        if job is None:
            continue
        present.add(job.id)
        job.attempt.was_reported = True
        take_report(state, job, runner, now_s)

    for job in state.jobs_by_age():
        if job.state in ON_HOST and job.attempt.was_reported and job.id not in present:
            assert job.record is not None, "reported by the host it was placed on"
            if state.observed.is_current(job.record.node_id):
                on_start_failed(state, job, GONE, now_s)


def reconcile(state: ClusterState, now_s: float) -> None:
    """Close every gap between wanted and reported that live reports show."""
    if state.leadership is None or not state.observed.was_seen:
        return
    loading = {job.record.placement_id for job in state.jobs.values() if job.record is not None}
    _adopt(state, loading)
    crowded = _crowded_starts(state, loading)
    for record in list(state.desired.values()):
        if record.placement_id in loading or record.placement_id in state.stops:
            continue
        if state.node(record.node_id) is None:
            _forget_in_time(state, record, now_s)
            continue
        state.desired_unseen_since_s.pop(record.placement_id, None)
        found = state.observed.replica(record.placement_id)
        runner = found[1] if found is not None and found[1].generation >= record.generation else None
        match record.phase:
            case Phase.STARTING:
                _resume_start(state, record, runner, now_s, has_room=record.placement_id not in crowded)
            case Phase.RUNNING:
                _check_running(state, record, runner, now_s)
            case Phase.STOPPING:
                _resume_stop(state, record, runner, now_s)
            case Phase.LOST:
                state.lost_since_s.setdefault(record.placement_id, now_s)


def _adopt(state: ClusterState, loading: set[str]) -> None:
    for node_id, runner in state.observed.replicas():
        if runner.placement_id in loading or runner.placement_id in state.stops or not runner.placement_id:
            continue
        known = state.desired.get(runner.placement_id)
        if known is not None and known.generation >= runner.generation:
            continue
        if runner.state in SERVING_STATES:
            state.note("replica.adopted", model=runner.model_name, placement=runner.placement_id, node=node_id)
            state.save_record(record_of(node_id, runner, Phase.RUNNING))


def _forget_in_time(state: ClusterState, record: DesiredPlacement, now_s: float) -> None:
    since_s = state.desired_unseen_since_s.setdefault(record.placement_id, now_s)
    if now_s >= since_s + NODE_FORGOTTEN_S and state.observed.frozen_since_s is None:
        state.desired_unseen_since_s.pop(record.placement_id)
        state.note("replica.forgotten", model=record.model_name, placement=record.placement_id, node=record.node_id)
        state.remove_record(record.placement_id)


def _crowded_starts(state: ClusterState, loading: set[str]) -> set[str]:
    """Return the starts that were never observed and find no room: they were planned on older figures.

    Any of them may run, so each is held against all others: of two that do not fit together none is repeated.
    """
    unseen: dict[str, tuple[tuple[Need, ...], list[Promise]]] = {}
    for record in state.desired.values():
        name, found = record.placement_id, state.observed.replica(record.placement_id)
        is_seen = found is not None and found[1].generation >= record.generation
        if record.phase is Phase.STARTING and not is_seen and name not in loading and name not in state.stops:
            start = LentTo(placement_id=name, model_name=record.model_name, node_id=record.node_id)
            needs = _needs(state, state.node(record.node_id), record) or ()
            unseen[name] = needs, list(start_promises(start, needs))
    crowded = set()
    for name, (needs, _) in unseen.items():
        others = (promise for other, (_, held) in unseen.items() if other != name for promise in held)
        rooms = Rooms(policy=state.policy, promises=(*promises(state), *others))
        if rooms.short_pools(needs, state.observed.nodes):
            crowded.add(name)
    return crowded


def _resume_start(
    state: ClusterState, record: DesiredPlacement, runner: RunnerView | None, now_s: float, *, has_room: bool
) -> None:
    if runner is not None and runner.state in SERVING_STATES:
        state.save_record(record.in_phase(Phase.RUNNING))
        return
    if (runner is not None and runner.state not in STARTING_STATES) or not state.observed.is_current(record.node_id):
        return
    node = state.node(record.node_id)
    needs = _needs(state, node, record)
    is_drained = not state.drains.keys().isdisjoint(nodes_of(record.node_id, record.layout))
    if needs is None or record.planned is None or (runner is None and (is_drained or not has_room)):
        state.remove_record(record.placement_id)
        return
    state.jobs_begun += 1
    job = LoadJob(
        id=state.jobs_begun,
        model_name=record.model_name,
        model_digest=record.model_digest,
        target=_target_of(state, record),
        keep_alive_ms=record.keep_alive_ms,
        created_s=now_s,
        moved_s=now_s,
        record=record,
        placement=Placement(
            node_id=record.node_id,
            layout=record.layout,
            report=record.planned,
            needs=needs,
        ),
    )
    state.jobs[job.id] = job
    state.note("load.resumed", model=record.model_name, placement=record.placement_id, node=record.node_id)
    begin_start(state, job, now_s)


def _target_of(state: ClusterState, record: DesiredPlacement) -> LoadTarget:
    """Return the target of a new load if this start fails: as originally requested, if that is still allowed."""
    asked = record.asked
    try:
        constraints = load_constraints(state, record.model_name, asked.options)
    except InvalidRequest:  # something else was set for the model since
        asked, constraints = NOTHING_ASKED, load_constraints(state, record.model_name)
    return LoadTarget(asked=asked, context_tokens=record.layout.context_tokens, constraints=constraints)


def _needs(state: ClusterState, node: NodeView | None, record: DesiredPlacement) -> tuple[Need, ...] | None:
    if node is None or record.planned is None:
        return None
    file = node.model(record.model_digest)
    architecture = file.facts.architecture if file is not None and file.facts is not None else ""
    kept = Kept(policy=state.policy, margins=state.margins, model_digest=record.model_digest, architecture=architecture)
    return needs_of(node, record.layout, record.planned, kept, state.observed.nodes)


def _check_running(state: ClusterState, record: DesiredPlacement, runner: RunnerView | None, now_s: float) -> None:
    if runner is not None and runner.state is not RunnerState.ERROR:
        return
    if state.observed.is_current(record.node_id):
        fault = runner.fault if runner is not None and runner.fault is not None else GONE
        state.note(
            "replica.lost", model=record.model_name, placement=record.placement_id, node=record.node_id,
            reason=fault.reason, text=fault.message,
        )  # fmt: skip
        see_crash(state, record, fault, now_s)
        state.lost_since_s[record.placement_id] = now_s
        state.save_record(record.in_phase(Phase.LOST))


def _resume_stop(state: ClusterState, record: DesiredPlacement, runner: RunnerView | None, now_s: float) -> None:
    if not state.observed.is_current(record.node_id):
        return
    if runner is None or runner.state is RunnerState.ERROR:
        state.remove_record(record.placement_id)
    else:
        order_stop(state, record.placement_id, reason="resumed", now_s=now_s)


def expire_idle(state: ClusterState, now_s: float) -> None:
    """Stop what has been idle for as long as it was asked to stay. A frozen view expires nothing."""
    for node_id, runner in list(state.observed.replicas()):
        if runner.state not in SERVING_STATES or not state.observed.is_current(node_id):
            continue
        expiry_s = expiry_of(state, runner)
        if expiry_s is not None and now_s >= expiry_s:
            order_stop(state, runner.placement_id, reason="keep_alive", now_s=now_s)


def expiry_of(state: ClusterState, runner: RunnerView) -> float | None:
    """Return the end of a replica's keep_alive. None: it is busy or not ready. Infinite: it stays."""
    tracked = state.tracked.get(runner.placement_id)
    if tracked is None or runner.state not in SERVING_STATES:
        return None
    constraints = keeping_of(state, runner)
    if constraints.pinned:
        return math.inf
    if constraints.replicas_min:
        serving = sum(1 for _ in serving_replicas(state, runner.model_digest))
        if serving <= constraints.replicas_min:
            return math.inf
    default_ms = default_keep_alive_ms(state, constraints)
    return expires_at_s(tracked, runner, default_ms=default_ms, grace_s=DWELL_S_MIN)


def advance_stops(state: ClusterState, now_s: float) -> None:
    """Take every stop as far as it comes now."""
    for stop in list(state.stops.values()):
        advance_stop(state, stop, now_s)

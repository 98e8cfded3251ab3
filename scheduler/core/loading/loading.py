"""Transitions of a load job.

1. Not now: it waits for a back-off, for an older load of the same model, or for the pause after a crash.
   On a node that crashes exclude it waits for the pause after its plan.
2. Plan on a fresh snapshot. A report is missing: have it measured, one at a time per node, then plan again.
3. It fits: write the placement down. It fits after evicting: order the stops, then plan again.
4. It would fit once busy ones are gone: wait; after `STARVE_S` the least used of them drain.
5. It cannot fit: answer all callers, with the numbers.
What happens once it is written is in `starting`.
"""

from collections.abc import Mapping
from dataclasses import replace

from common.spec.layout import FlashAttention, Layout
from scheduler.core.loading.answers import fail, forget, tell_positions
from scheduler.core.loading.crashes import excluded_nodes, pause_after_crash
from scheduler.core.loading.fetch_failures import is_of_headers, name_origins, on_headers_failed
from scheduler.core.loading.replacement import drop_replacement
from scheduler.core.loading.starting import FRESH_FIGURES_S
from scheduler.core.planning.candidates import MeasureFirst, Placement, PlacementRequest, Refusal, RefusalKind, Reports
from scheduler.core.planning.drafts import plan_with_draft
from scheduler.core.planning.known_reports import BAD_FILE
from scheduler.core.planning.lending import lenders_of, loans_for, nodes_of
from scheduler.core.planning.nearest import would_fit_text
from scheduler.core.planning.placement import WAITS_FOR_LOAD, WAITS_FOR_PROBE
from scheduler.core.planning.projectors import choose_projector
from scheduler.core.room.blockers import holders, names_text, preempt_cheapest, with_blockers
from scheduler.core.room.evictable import STARVE_S
from scheduler.core.room.snapshot import cluster_view, without_promised_room
from scheduler.core.state.cluster_state import ClusterState
from scheduler.core.state.effects import Measure
from scheduler.core.state.events import MeasureEnded
from scheduler.core.state.load_jobs import UNPLACED, LoadJob, LoadState
from scheduler.core.state.replicas import serving_replicas
from scheduler.core.stopping.stopping import order_stop, still_hold_what_is_needed
from scheduler.core.values.asked import slot_steps
from scheduler.core.values.desired import DesiredPlacement, Phase
from scheduler.core.values.faults import Fault, bad_model_file, insufficient_memory, unavailable
from scheduler.core.values.memory import MemoryReport
from scheduler.core.values.view import SERVING_STATES, STARTING_STATES

REPORT_CACHE_MAX = 4096
# Failed measurements that are kept for explanations.
REFUSALS_MAX = 64
BATCH_TOKENS = 512


def pump(state: ClusterState, now_s: float) -> None:
    """Take every load as far as it comes now, oldest first."""
    if state.leadership is None:
        return
    for job in state.jobs_by_age():
        if job.state in UNPLACED:
            _advance_unplaced(state, job, now_s)
    tell_positions(state, now_s)


def _advance_unplaced(state: ClusterState, job: LoadJob, now_s: float) -> None:
    if now_s < job.not_before_s:
        return
    older = (other for other in state.jobs.values() if other.id < job.id and other.model_digest == job.model_digest)
    if any(other.state in UNPLACED or not job.is_extra for other in older):
        job.waits_for = "an older load of the model"
        return
    if job.state is LoadState.MEASURING:
        if job.measuring is not None:
            return  # the answer is on its way
        job.move(LoadState.WAITING, now_s)
    elif job.state is LoadState.WAITING:
        job.restart = pause_after_crash(state, job.model_digest, now_s)
        if job.restart is not None:
            return
    if job.state is LoadState.EVICTING:
        assert job.placement is not None, "what evicts knows for what"
        if still_hold_what_is_needed(state, job.placement):
            return
        job.move(LoadState.WAITING, now_s)
    _plan(state, job, now_s)


def plan_load(
    state: ClusterState, job: LoadJob, now_s: float, *, measurements: bool = True
) -> Placement | MeasureFirst | Refusal:
    """Return what would be decided about a load now, or without running measurements. Changes nothing.

    Nodes where the model crashes are used where no other can take it, but for a replica beside one that serves.
    """
    excluded = excluded_nodes(state, job.model_digest, now_s)
    outcome = _plan_outside(state, job, now_s, excluded, measurements=measurements)
    is_spare = job.is_extra and any(serving_replicas(state, job.model_digest))
    if excluded and isinstance(outcome, Refusal) and not is_spare:
        return _plan_outside(state, job, now_s, {}, measurements=measurements)
    return outcome


def _plan_outside(
    state: ClusterState, job: LoadJob, now_s: float, excluded: Mapping[str, str], *, measurements: bool
) -> Placement | MeasureFirst | Refusal:
    policy, target, constraints = state.policy, job.target, job.target.constraints
    configured_tokens = constraints.context_tokens or policy.context_tokens
    view = cluster_view(state, now_s, job=job, measurements=measurements)
    projector, view = choose_projector(view, job.model_digest)
    view = replace(view, nodes=without_promised_room(view.nodes, state, job))
    request = PlacementRequest(
        model_digest=job.model_digest,
        layout=Layout(
            context_tokens=target.context_tokens,
            slots=1,
            batch_tokens=constraints.batch_tokens or BATCH_TOKENS,
            flash_attention=constraints.flash_attention or FlashAttention.AUTO,
            threads=constraints.threads,
            use_mmap=constraints.use_mmap,
            engine=policy.engine,
            projector_digest=projector,
            rollback_tokens=constraints.rollback_tokens,
        ).with_cache_types(*constraints.cache_types),
        slot_steps=slot_steps(constraints.slots or policy.num_parallel),
        constraints=constraints,
        backoff=job.failed.backoff,
        automatic_context=target.asked.context_tokens is None and not configured_tokens,
        automatic_cache_type=policy.auto_kv,
        failed_nodes={**excluded, **job.failed.nodes},
        replicas=_other_replicas(state, job),
    )
    reports: Reports = {**state.reports, **job.failed.measures, **job.failed.sizes}
    return plan_with_draft(request, view, reports, policy, unfetched=job.failed.draft)


def _other_replicas(state: ClusterState, job: LoadJob) -> frozenset[tuple[str, str]]:
    """Return the devices of the replicas that stay beside the new one: not of those that end or have crashed."""
    if not job.is_extra:
        return frozenset()
    return frozenset(
        (part.node_id or node_id, part.device_id)
        for node_id, runner in state.observed.replicas()
        if runner.model_digest == job.model_digest
        and runner.state in SERVING_STATES | STARTING_STATES
        and runner.placement_id not in state.stops
        for part in runner.layout.devices
    )


def _plan(state: ClusterState, job: LoadJob, now_s: float) -> None:
    outcome = _plan_with_less(state, job, plan_load(state, job, now_s), now_s)
    if _awaits_fresh_figures(job, outcome, now_s):
        return
    if isinstance(outcome, Refusal) and outcome.kind is not RefusalKind.BUSY and drop_replacement(job):
        outcome = _plan_with_less(state, job, plan_load(state, job, now_s), now_s)
    if _waits_for_a_measurement(state, job, outcome, now_s):
        job.waits_for = "a measurement"
        return
    job.behind = ()
    if not isinstance(outcome, MeasureFirst):
        job.placement = None  # kept during a measurement: its promises hold the room that was made
    evicts = isinstance(outcome, Placement) and outcome.victims
    if not job.may_evict and (evicts or isinstance(outcome, Refusal)):
        fail(state, job, unavailable("there is no room for one replica more"), now_s)
        return
    outcome = with_blockers(state, job, outcome, now_s)
    match outcome:
        case MeasureFirst():
            _measure(state, job, outcome, now_s)
        case Placement():
            _place(state, job, outcome, now_s)
        case Refusal():
            state.remember_decision(job, outcome, now_s)
            _refused(state, job, outcome, now_s)


def _plan_with_less(
    state: ClusterState, job: LoadJob, outcome: Placement | MeasureFirst | Refusal, now_s: float
) -> Placement | MeasureFirst | Refusal:
    """Plan again with the requested context if a larger one has no room."""
    wanted = job.target.asked.context_tokens
    if not isinstance(outcome, Refusal) or wanted is None or job.target.context_tokens <= wanted:
        return outcome
    job.target = replace(job.target, context_tokens=wanted)
    return plan_load(state, job, now_s)


def _awaits_fresh_figures(job: LoadJob, outcome: Placement | MeasureFirst | Refusal, now_s: float) -> bool:
    """Return True if the memory of a lost replica may be reported free in a moment; the load then waits for that."""
    fresh_at_s = job.created_s + FRESH_FIGURES_S
    if not isinstance(outcome, Refusal) or job.own is None or now_s >= fresh_at_s:
        return False
    job.not_before_s, job.waits_for = fresh_at_s, "fresh figures"
    return True


def _waits_for_a_measurement(
    state: ClusterState, job: LoadJob, outcome: Placement | MeasureFirst | Refusal, now_s: float
) -> bool:
    """Return True if the plan would change once running measurements release their memory.

    The load then waits instead of evicting.
    """
    if not state.measuring or isinstance(outcome, MeasureFirst):
        return False
    later = plan_load(state, job, now_s, measurements=False)
    if isinstance(later, Placement) and isinstance(outcome, Placement):
        return (later.node_id, later.layout, later.victims) != (outcome.node_id, outcome.layout, outcome.victims)
    return type(later) is not type(outcome)


def _place(state: ClusterState, job: LoadJob, placement: Placement, now_s: float) -> None:
    if _waits_for_excluded(state, job, placement, now_s):
        return
    state.remember_decision(job, placement, now_s)
    if placement.victims:
        _evict(state, job, placement, now_s)
    else:
        _write_down(state, job, placement, now_s)


def _waits_for_excluded(state: ClusterState, job: LoadJob, placement: Placement, now_s: float) -> bool:
    """Return True while a load on a node where its model crashes waits for its pause, which begins here."""
    excluded = excluded_nodes(state, job.model_digest, now_s)
    if excluded.keys().isdisjoint(nodes_of(placement.node_id, placement.layout)):
        return False
    job.restart = pause_after_crash(state, job.model_digest, now_s, on_excluded=True)
    job.busy_since_s = None
    return job.restart is not None


def _measure(state: ClusterState, job: LoadJob, wanted: MeasureFirst, now_s: float) -> None:
    """Order a measurement, one at a time per node: each holds a context on the devices."""
    node = state.node(wanted.node_id)
    assert node is not None, "plans name nodes of the view"
    assert state.leadership is not None, "jobs end with leadership"
    job.move(LoadState.MEASURING, now_s)
    if wanted.node_id in state.measuring:
        job.waits_for = "another measurement"
        return
    loans = None
    if lenders_of(wanted.layout):
        loans = loans_for(
            wanted.layout,
            None,
            state.observed.nodes,
            head=node,
            reference=(state.new_id(), 1),  # lent for the measurement alone
            command=(state.leadership.fence, state.leadership.leader_id),
        )
    job.measuring = wanted.key
    name_origins(state, job, node, wanted.layout)
    state.measuring[node.id] = wanted  # its bytes are promised to it
    state.emit(
        Measure(
            node_id=node.id,
            address=node.address,
            key=wanted.key,
            layout=wanted.layout,
            loans=loans,
            caller_id=job.first_caller,
            origin=job.origin,
            draft_origin=job.draft_origin,
        )
    )


def _write_down(state: ClusterState, job: LoadJob, placement: Placement, now_s: float) -> None:
    assert state.leadership is not None, "jobs end with leadership"
    before = job.record or _lost_record(state, job)
    if before is not None and before.node_id != placement.node_id:
        forget(state, before.placement_id)  # its node may be back with its runner: that is another placement
        before = None
    job.placement = placement
    job.target = replace(job.target, context_tokens=placement.layout.context_tokens)
    job.busy_since_s = None
    job.waits_for = ""
    job.record = DesiredPlacement(
        placement_id=before.placement_id if before is not None else state.new_id(),
        generation=before.generation + 1 if before is not None else 1,
        phase=Phase.STARTING,
        node_id=placement.node_id,
        model_name=job.model_name,
        model_digest=job.model_digest,
        layout=placement.layout,
        planned=placement.report,
        keep_alive_ms=job.keep_alive_ms,
        asked=job.target.asked,
    )
    job.move(LoadState.PLANNED, now_s)
    state.save_record(job.record)
    state.note(
        "model.placed",
        model=job.model_name,
        placement=job.record.placement_id,
        generation=job.record.generation,
        node=placement.node_id,
        reason=job.reason,
        shape=str(placement.shape) if placement.shape is not None else "resumed",
        devices=[layers.device_id for layers in placement.layout.devices] or ["host"],
        slots=placement.layout.slots,
        context_tokens=placement.layout.context_tokens,
        need_bytes=sum(need.total_bytes for need in placement.needs),
    )


def _lost_record(state: ClusterState, job: LoadJob) -> DesiredPlacement | None:
    """Return the placement of the model whose runner died: the new runner is its next generation."""
    taken = {other.record.placement_id for other in state.jobs.values() if other.record is not None}
    lost = (
        record
        for record in state.desired.values()
        if record.model_digest == job.model_digest and record.phase is Phase.LOST and record.placement_id not in taken
    )
    return min(lost, key=lambda record: record.placement_id, default=None)


def _evict(state: ClusterState, job: LoadJob, placement: Placement, now_s: float) -> None:
    job.placement = placement
    names = {found[1].model_name for victim in placement.victims if (found := state.observed.replica(victim))}
    job.waits_for = f"{', '.join(sorted(names)) or 'evicted models'} to be gone"
    job.move(LoadState.EVICTING, now_s)
    for victim in placement.victims:
        found = state.observed.replica(victim)
        if found is not None and found[1].model_digest == job.model_digest:
            state.models[job.model_digest].replaced_at_s = now_s
        order_stop(state, victim, reason="memory", now_s=now_s)


def _refused(state: ClusterState, job: LoadJob, refusal: Refusal, now_s: float) -> None:
    if job.failed.last_fault is not None and refusal.kind is not RefusalKind.BUSY:
        near = [would_fit_text(refusal.nearest)] if refusal.nearest else []
        fail(state, job, replace(job.failed.last_fault, message="; ".join([*job.failed.story, *near])), now_s)
        return
    match refusal.kind:
        case RefusalKind.BUSY:
            job.behind, job.waits_for = _what_goes_first(state, job, refusal)
            job.busy_since_s = now_s if job.busy_since_s is None else job.busy_since_s
            if now_s >= job.busy_since_s + STARVE_S:
                job.busy_since_s = now_s
                preempt_cheapest(state, job, refusal, now_s)
        case RefusalKind.INSUFFICIENT_MEMORY:
            fail(state, job, insufficient_memory(refusal.message), now_s)
        case RefusalKind.NO_DEVICE:
            fail(state, job, unavailable(refusal.message), now_s)
        case RefusalKind.MEASURE_FAILED:
            fault = refusal.fault
            if fault is not None and fault.reason == BAD_FILE:
                fault = bad_model_file(job.model_name, fault.message)
            fail(state, job, fault or unavailable(refusal.message), now_s)


def _what_goes_first(state: ClusterState, job: LoadJob, refusal: Refusal) -> tuple[tuple[int, ...], str]:
    """Return the loads that hold the devices, if nothing else does, and the wait in words."""
    loads = [other for other in state.jobs_by_age() if other.state not in UNPLACED and other is not job]
    if refusal.message == WAITS_FOR_LOAD and loads:
        return tuple(other.id for other in loads), f"the load of {names_text(other.model_name for other in loads)}"
    if refusal.message == WAITS_FOR_PROBE:
        return (), "a node to know its devices"
    names = [*holders(state, refusal), *(other.model_name for other in loads)]
    return (), f"memory that {names_text(names)} {'holds' if len(set(names)) == 1 else 'hold'}" if names else "memory"


def take_outcome(state: ClusterState, event: MeasureEnded, now_s: float) -> None:
    """Take in what was counted, or why it was not."""
    running, found = state.measuring.get(event.node_id), event.found
    if running is not None and running.key == event.key:
        del state.measuring[event.node_id]
    for job in state.jobs_by_age():
        if job.measuring == event.key:
            job.measuring = None
            job.rounds += 1
            if isinstance(found, Fault):
                if is_of_headers(state, job, event.node_id, found):
                    on_headers_failed(state, job, event.node_id, found, now_s)
                else:
                    job.failed.measures[event.key] = found
    if isinstance(found, MemoryReport):
        state.refused_measures.pop(event.key, None)
        while len(state.reports) >= REPORT_CACHE_MAX:
            del state.reports[next(iter(state.reports))]
        state.reports[event.key] = found
    else:
        while len(state.refused_measures) >= REFUSALS_MAX:
            del state.refused_measures[next(iter(state.refused_measures))]
        state.refused_measures[event.key] = found

"""What drives a load job from one state to the next.

1. Not now: it waits for a back-off, for an older load of the same model, or for the pause after a crash.
2. Plan on a fresh snapshot. A report is missing: have it measured, then plan again.
3. It fits: write the placement down. It fits after evicting: order the stops, then plan again.
4. It would fit once busy ones are gone: wait; after `starve_s` the least used of them drain.
5. It cannot fit: tell everybody, with the numbers.
What happens once it is written is in `starting`.
"""

from dataclasses import replace

from scheduler.core.books.books import Books
from scheduler.core.books.effects import Measure, SaveDesired
from scheduler.core.books.load_jobs import UNPLACED, LoadJob, LoadState
from scheduler.core.loading.answers import fail, forget, tell_positions
from scheduler.core.loading.as_before import as_asked_itself
from scheduler.core.loading.crashes import broken_nodes, pause_after_crash, tried_again_at_s
from scheduler.core.loading.fetch_failures import origin_for_load
from scheduler.core.loading.measuring import book
from scheduler.core.loading.starting import FRESH_FIGURES_S
from scheduler.core.loading.starving import drain_cheapest
from scheduler.core.planning.candidates import MeasureFirst, Placement, PlacementRequest, Refusal, RefusalKind
from scheduler.core.planning.fetching import plan_anywhere
from scheduler.core.planning.lending import lenders_of, loans_for
from scheduler.core.planning.nearest import would_fit_text
from scheduler.core.planning.placement import BAD_FILE, WAITS_FOR_LOAD, WAITS_FOR_PROBE
from scheduler.core.planning.projectors import choose_projector
from scheduler.core.room.in_the_way import holders, names_text, with_names
from scheduler.core.room.snapshot import cluster_view
from scheduler.core.room.store_room import without_promised_room
from scheduler.core.stopping.stopping import order_stop, still_hold_what_is_needed
from scheduler.core.values.asked import Asked
from scheduler.core.values.desired import DesiredPlacement, Phase
from scheduler.core.values.faults import RETRY_SOON_S, bad_model_file, insufficient_memory, unavailable
from scheduler.core.values.layouts import FlashAttention, Layout, slot_steps


def pump(books: Books, now_s: float) -> None:
    """Take every load as far as it comes now, oldest first."""
    if books.leadership is None:
        return
    for job in books.jobs_by_age():
        if job.state in UNPLACED:
            _advance_unplaced(books, job, now_s)
    tell_positions(books, now_s)


def _advance_unplaced(books: Books, job: LoadJob, now_s: float) -> None:
    if now_s < job.not_before_s:
        return
    older = (other for other in books.jobs.values() if other.id < job.id and other.model_digest == job.model_digest)
    if any(other.state in UNPLACED or not job.is_extra for other in older):
        job.waits_for = "an older load of the model"
        return
    if job.state is LoadState.MEASURING:
        if job.measuring is not None:
            return  # the answer is on its way
        job.move(LoadState.WAITING, now_s)
    elif job.state is LoadState.WAITING:
        job.restart = pause_after_crash(books, job.model_digest, now_s)
        if job.restart is not None:
            return
    if job.state is LoadState.EVICTING:
        assert job.placement is not None, "what evicts knows for what"
        if still_hold_what_is_needed(books, job.placement):
            return
        job.move(LoadState.WAITING, now_s)
    _plan(books, job, now_s)


def plan_load(
    books: Books, job: LoadJob, now_s: float, *, measurements: bool = True
) -> Placement | MeasureFirst | Refusal:
    """What would be decided about a load now, or if nobody measured. Changes nothing."""
    policy, constraints = books.policy, job.constraints
    view = cluster_view(books, now_s, job=job, measurements=measurements)
    projector, view = choose_projector(view, job.model_digest)
    view = replace(view, nodes=without_promised_room(view.nodes, books, job))
    request = PlacementRequest(
        model_digest=job.model_digest,
        layout=Layout(
            context_tokens=job.context_tokens,
            slots=1,
            batch_tokens=constraints.batch_tokens or policy.batch_tokens,
            cache_type_k=constraints.cache_type_k,
            cache_type_v=constraints.cache_type_v,
            flash_attention=constraints.flash_attention or FlashAttention.AUTO,
            threads=constraints.threads,
            use_mmap=constraints.use_mmap,
            engine=policy.engine,
            projector_digest=projector,
        ),
        slot_steps=slot_steps(constraints.slots or policy.num_parallel),
        require_gpu=constraints.require_gpu,
        constraints=constraints,
        backoff=job.backoff,
        automatic_context=job.wanted_tokens is None and not (constraints.context_tokens or policy.context_tokens),
        automatic_cache_type=policy.auto_kv,
        failed_nodes=broken_nodes(books, job.model_digest, now_s) | job.failed_nodes,
        replicas=_other_replicas(books, job),
    )
    return plan_anywhere(request, view, {**books.reports, **job.measure_faults, **job.attempted}, policy)


def _other_replicas(books: Books, job: LoadJob) -> frozenset[tuple[str, str]]:
    """Where the replicas lie that stay beside the new one."""
    if not job.is_extra:
        return frozenset()
    return frozenset(
        (part.node_id or node_id, part.device_id)
        for node_id, runner in books.observed.replicas()
        if runner.model_digest == job.model_digest
        for part in runner.layout.devices
    )


def _plan(books: Books, job: LoadJob, now_s: float) -> None:
    outcome = _plan_with_less(books, job, plan_load(books, job, now_s), now_s)
    if _hopes_for_fresh_figures(job, outcome, now_s):
        return
    if isinstance(outcome, Refusal) and outcome.kind is not RefusalKind.BUSY and as_asked_itself(job):
        outcome = _plan_with_less(books, job, plan_load(books, job, now_s), now_s)
    if _waits_for_a_measurement(books, job, outcome, now_s):
        job.waits_for = "a measurement"
        return
    job.behind = ()
    if not isinstance(outcome, MeasureFirst):
        job.placement = None  # what was made room for; while that is counted nobody else takes it
    if not job.may_evict and isinstance(outcome, Refusal | Placement) and _is_costly(outcome):
        fail(books, job, unavailable("there is no room for one replica more"), now_s)
        return
    outcome = with_names(books, job, outcome, now_s)
    match outcome:
        case MeasureFirst():
            _measure(books, job, outcome, now_s)
        case Placement(victims=()):
            books.remember_decision(job, outcome, now_s)
            _write_down(books, job, outcome, now_s)
        case Placement():
            books.remember_decision(job, outcome, now_s)
            _evict(books, job, outcome, now_s)
        case Refusal():
            books.remember_decision(job, outcome, now_s)
            _refused(books, job, outcome, now_s)


def _plan_with_less(
    books: Books, job: LoadJob, outcome: Placement | MeasureFirst | Refusal, now_s: float
) -> Placement | MeasureFirst | Refusal:
    """Where more than was asked has no room: no more than was asked."""
    if not isinstance(outcome, Refusal) or job.wanted_tokens is None or job.context_tokens <= job.wanted_tokens:
        return outcome
    job.context_tokens = job.wanted_tokens
    return plan_load(books, job, now_s)


def _hopes_for_fresh_figures(job: LoadJob, outcome: Placement | MeasureFirst | Refusal, now_s: float) -> bool:
    """Whether what a lost replica held may be back in a moment: then there is room for it as it was."""
    fresh_at_s = job.created_s + FRESH_FIGURES_S
    if not isinstance(outcome, Refusal) or job.own is None or now_s >= fresh_at_s:
        return False
    job.not_before_s, job.waits_for = fresh_at_s, "fresh figures"
    return True


def _waits_for_a_measurement(
    books: Books, job: LoadJob, outcome: Placement | MeasureFirst | Refusal, now_s: float
) -> bool:
    """Whether it would be decided otherwise if nobody measured: that is over in a moment, and nobody goes for it."""
    if not books.measuring or isinstance(outcome, MeasureFirst):
        return False
    later = plan_load(books, job, now_s, measurements=False)
    if isinstance(later, Placement) and isinstance(outcome, Placement):
        return (later.node_id, later.layout, later.victims) != (outcome.node_id, outcome.layout, outcome.victims)
    return type(later) is not type(outcome)


def _is_costly(outcome: Placement | Refusal) -> bool:
    return isinstance(outcome, Refusal) or bool(outcome.victims)


def _measure(books: Books, job: LoadJob, wanted: MeasureFirst, now_s: float) -> None:
    """One measurement at a time per node: each holds a context on the devices."""
    node = books.node(wanted.node_id)
    assert node is not None, "plans name nodes of the view"
    assert books.leadership is not None, "jobs end with leadership"
    job.move(LoadState.MEASURING, now_s)
    if wanted.node_id in books.measuring:
        job.waits_for = "another measurement"
        return
    loans = None
    if lenders_of(wanted.layout):
        loans = loans_for(
            wanted.layout,
            None,
            books.observed.nodes,
            head=node,
            reference=(books.new_id(), 1),  # lent for the measurement alone
            command=(books.leadership.fence, books.leadership.leader_id),
        )
    job.measuring = wanted.key
    job.origin = origin_for_load(books, job, node, wanted.layout.projector_digest)
    book(books, wanted)
    books.emit(
        Measure(
            node_id=node.id,
            address=node.address,
            key=wanted.key,
            layout=wanted.layout,
            loans=loans,
            caller_id=job.first_caller,
            origin=job.origin,
        )
    )


def _write_down(books: Books, job: LoadJob, placement: Placement, now_s: float) -> None:
    assert books.leadership is not None, "jobs end with leadership"
    before = job.record or _lost_record(books, job)
    if before is not None and before.node_id != placement.node_id:
        forget(books, before.placement_id)  # its node may be back with its runner: that is another placement
        before = None
    job.placement = placement
    job.context_tokens = placement.layout.context_tokens
    job.busy_since_s = None
    job.was_reported = False
    job.waits_for = ""
    job.record = DesiredPlacement(
        placement_id=before.placement_id if before is not None else books.new_id(),
        generation=before.generation + 1 if before is not None else 1,
        phase=Phase.STARTING,
        node_id=placement.node_id,
        model_name=job.model_name,
        model_digest=job.model_digest,
        layout=placement.layout,
        planned=placement.report,
        keep_alive_ms=job.keep_alive_ms,
        asked=Asked(context_tokens=job.wanted_tokens, options=job.options),
    )
    books.desired[job.record.placement_id] = job.record
    job.move(LoadState.PLANNED, now_s)
    books.emit(SaveDesired(fence=books.leadership.fence, record=job.record))
    books.note(
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


def _lost_record(books: Books, job: LoadJob) -> DesiredPlacement | None:
    """The placement of the model whose runner died: the new runner is its next generation."""
    taken = {other.record.placement_id for other in books.jobs.values() if other.record is not None}
    lost = (
        record
        for record in books.desired.values()
        if record.model_digest == job.model_digest and record.phase is Phase.LOST and record.placement_id not in taken
    )
    return min(lost, key=lambda record: record.placement_id, default=None)


def _evict(books: Books, job: LoadJob, placement: Placement, now_s: float) -> None:
    job.placement = placement
    names = {found[1].model_name for victim in placement.victims if (found := books.observed.replica(victim))}
    job.waits_for = f"{', '.join(sorted(names)) or 'evicted models'} to be gone"
    job.move(LoadState.EVICTING, now_s)
    for victim in placement.victims:
        found = books.observed.replica(victim)
        if found is not None and found[1].model_digest == job.model_digest:
            books.replaced_at_s[job.model_digest] = now_s
        order_stop(books, victim, reason="memory", now_s=now_s)


def _refused(books: Books, job: LoadJob, refusal: Refusal, now_s: float) -> None:
    if job.last_fault is not None and refusal.kind is not RefusalKind.BUSY:
        near = [would_fit_text(refusal.nearest)] if refusal.nearest else []
        fail(books, job, replace(job.last_fault, message="; ".join([*job.story, *near])), now_s)
        return
    match refusal.kind:
        case RefusalKind.BUSY:
            job.behind, job.waits_for = _what_goes_first(books, job, refusal)
            job.busy_since_s = now_s if job.busy_since_s is None else job.busy_since_s
            if now_s >= job.busy_since_s + books.policy.starve_s:
                job.busy_since_s = now_s
                drain_cheapest(books, job, refusal, now_s)
        case RefusalKind.INSUFFICIENT_MEMORY:
            fail(books, job, insufficient_memory(refusal.message), now_s)
        case RefusalKind.NO_DEVICE:
            fail(books, job, unavailable(refusal.message, retry_after_s=_retry_after_s(books, job, now_s)), now_s)
        case RefusalKind.MEASURE_FAILED:
            fault = refusal.fault
            if fault is not None and fault.reason == BAD_FILE:
                fault = bad_model_file(job.model_name, fault.message)
            fail(books, job, fault or unavailable(refusal.message), now_s)


def _retry_after_s(books: Books, job: LoadJob, now_s: float) -> float:
    """Where the model broke on nodes: until the first of them is tried again."""
    at_s = tried_again_at_s(books, job.model_digest, now_s)
    return RETRY_SOON_S if at_s is None else max(RETRY_SOON_S, at_s - now_s)


def _what_goes_first(books: Books, job: LoadJob, refusal: Refusal) -> tuple[tuple[int, ...], str]:
    """The loads that hold the devices, if that is all it is, and the same or whose memory it is in words."""
    loads = [other for other in books.jobs_by_age() if other.state not in UNPLACED and other is not job]
    if refusal.message == WAITS_FOR_LOAD and loads:
        return tuple(other.id for other in loads), f"the load of {names_text(other.model_name for other in loads)}"
    if refusal.message == WAITS_FOR_PROBE:
        return (), "a node to know its devices"
    names = [*holders(books, refusal), *(other.model_name for other in loads)]
    return (), f"memory that {names_text(names)} {'holds' if len(set(names)) == 1 else 'hold'}" if names else "memory"

"""Requests of callers: a replica of a model, or its unload."""

import statistics
from dataclasses import replace

from common.errors import InvalidRequest
from common.spec.load_options import NO_LOAD_OPTIONS, LoadOptions
from scheduler.core.loading.answers import attach, fail, refresh_keep_alive
from scheduler.core.loading.crashes import forget_crashes
from scheduler.core.loading.replacement import drop_replacement, find_replaced, forget_lost, join_replacement
from scheduler.core.loading.starting import stop_load
from scheduler.core.state.cluster_state import ClusterState
from scheduler.core.state.effects import AnswerReady, AnswerReplicas
from scheduler.core.state.events import EnsureRequested, UnloadRequested
from scheduler.core.state.growth import grown_context_tokens, remember_asked
from scheduler.core.state.load_jobs import ON_HOST, UNPLACED, LoadJob, LoadTarget
from scheduler.core.state.model_constraints import constraints_of, followable, load_constraints, load_target
from scheduler.core.state.replicas import serving_replicas, will_do
from scheduler.core.state.shared_files import keeping_of
from scheduler.core.stopping.stopping import order_stop
from scheduler.core.values.asked import Asked, wanted_context_tokens
from scheduler.core.values.constraints import Constraints, node_obstacle, unmatched
from scheduler.core.values.faults import (
    Fault,
    bad_model_file,
    canceled,
    invalid_value,
    model_not_found,
    node_not_found,
    queue_full,
    unavailable,
)
from scheduler.core.values.view import ModelFile

MOVE = "move"  # a reason, for people


def ensure(state: ClusterState, event: EnsureRequested, now_s: float) -> None:
    """Answer at once if a replica will do, else let the caller wait for a load.

    1. Unknown, or known to be broken: say so.
    2. A replica with enough context serves: that one, with or without leadership.
    3. No leadership, constraints that nothing can meet, or as many waiting as may: refuse.
    4. A load that will do is under way: wait for it. Else begin one.

    An operator's load forgets the model's crashes first.
    """
    model = state.model_named(event.model_name)
    fault = _why_not(state, model, event.model_name)
    if fault is not None or model is None:
        state.refuse(event.caller_id, fault or model_not_found(event.model_name))
        return
    event = replace(event, options=followable(state, model.name, event.options))
    wanted = wanted_context_tokens(event.context_tokens, trained=model.trained_context_tokens, sees=model.sees)
    remember_asked(state, model.digest, wanted, now_s)
    if event.at_once:
        forget_crashes(state, model.digest, now_s)
    if not event.move_to and _send_to_replica(state, event, model, wanted, now_s):
        return
    if state.leadership is None:
        state.refuse(event.caller_id, state.no_leader)
        return
    if event.move_to:
        _move(state, event, model, now_s)
        return
    constraints = _constraints(state, model, event.options)
    if isinstance(constraints, Fault):
        state.refuse(event.caller_id, constraints)
        return
    if state.waiters() >= state.policy.load_waiters_max:
        state.refuse(event.caller_id, queue_full(_usual_load_s(state)))
        return
    job = _job_that_will_do(state, model, wanted, event.options, constraints)
    if job is None:
        job = begin_load(state, model, now_s=now_s, wanted=wanted, options=event.options, reason="asked")
        job.load_only = event.load_only
    job.load_only = job.load_only and event.load_only
    if event.keep_alive_ms is not None:
        job.keep_alive_ms = event.keep_alive_ms
    attach(state, job, event.caller_id, now_s)


def _move(state: ClusterState, event: EnsureRequested, model: ModelFile, now_s: float) -> None:
    """Begin a load on the node that the caller names; it ends a replica of another node, the one in use last of all."""
    node = state.node(event.move_to)
    if node is None:
        state.refuse(event.caller_id, node_not_found(event.move_to))
        return
    if node_obstacle(constraints_of(state, model.name), node):
        state.refuse(event.caller_id, invalid_value(f'"nodes" of {model.name} leaves {node.id} out'))
        return
    serving = list(serving_replicas(state, model.digest))
    elsewhere = sorted((one.slots_busy, one.placement_id, one) for node_id, one in serving if node_id != node.id)
    if not serving:
        state.refuse(event.caller_id, invalid_value(f"no replica of {model.name} serves; load it instead"))
        return
    if not elsewhere:
        state.emit(AnswerReady(callers=(event.caller_id,), model_name=model.name))
        return
    nodes = (node.id,)
    moves = [one for one in state.jobs_by_age() if one.moves and one.model_digest == model.digest]
    if under_way := next((job for job in moves if job.target.constraints.nodes == nodes), None):
        attach(state, under_way, event.caller_id, now_s)
        return
    source = elsewhere[0][2]
    record = state.desired.get(source.placement_id)
    asked = NO_LOAD_OPTIONS if record is None else record.asked.options
    job = begin_load(
        state, model, now_s=now_s, wanted=source.layout.context_tokens, options=asked, is_extra=True, reason=MOVE
    )
    job.moves, job.own, job.keep_alive_ms = source.placement_id, None, None if record is None else record.keep_alive_ms
    job.target = replace(job.target, constraints=replace(job.target.constraints, nodes=nodes))
    attach(state, job, event.caller_id, now_s)


def _usual_load_s(state: ClusterState) -> float | None:
    """Return the usual time of a load: of the requested models, else of any; None: none was seen."""
    waited_for = {job.model_digest for job in state.jobs.values()}
    seen = {digest: load_s for digest, one in state.models.items() if (load_s := one.demand.load_s) is not None}
    relevant = [load_s for digest, load_s in seen.items() if digest in waited_for] or list(seen.values())
    return statistics.median(relevant) if relevant else None


def _why_not(state: ClusterState, model: ModelFile | None, name: str) -> Fault | None:
    if model is not None:
        return bad_model_file(name, model.error) if model.error else None
    observed = state.observed
    if not observed.was_seen or (observed.is_young and not observed.nodes):
        return unavailable("no node has registered yet")
    return None


def _constraints(state: ClusterState, model: ModelFile, options: LoadOptions) -> Constraints | Fault:
    """Return the constraints of the load, or the fault of one that contradicts another or matches nothing."""
    try:
        constraints = load_constraints(state, model.name, options)
    except InvalidRequest as error:
        return invalid_value(error.message)
    if name := unmatched(constraints, state.observed.nodes.values()):
        if name == "backend" and not constraints_of(state, model.name).backend:
            return unavailable(f'no device of this cluster has the backend "{constraints.backend}" of PUNA_LLM_LIBRARY')
        return invalid_value(f'"{name}" matches no node or device of this cluster')
    return constraints


def _send_to_replica(
    state: ClusterState, event: EnsureRequested, model: ModelFile, wanted: int | None, now_s: float
) -> bool:
    found = [
        one
        for node_id, one in serving_replicas(state, model.digest)
        if will_do(state, node_id, one, wanted_tokens=wanted, options=event.options)
    ]
    if not found:
        return False
    for runner in found:
        refresh_keep_alive(state, runner, event.keep_alive_ms, load_only=event.load_only, now_s=now_s)
    state.emit(AnswerReady(callers=(event.caller_id,), model_name=model.name))
    return True


def _job_that_will_do(
    state: ClusterState, model: ModelFile, wanted: int | None, options: LoadOptions, constraints: Constraints
) -> LoadJob | None:
    for job in state.jobs_by_age():
        if job.model_digest != model.digest or job.moves:
            continue
        undecided = job.record is None and job.placement is None
        if options.placing not in {job.target.asked.options.placing, NO_LOAD_OPTIONS.placing}:
            if not undecided or job.callers_ask.options.placing != NO_LOAD_OPTIONS.placing:
                continue
            drop_replacement(job)
            # Nothing is decided yet: one load serves both.
            asked = replace(job.target.asked, options=options)
            job.target = replace(job.target, asked=asked, constraints=constraints)
        if (wanted or 0) <= job.target.context_tokens:
            join_replacement(job, wanted, options)
            return job
        if undecided:
            assert wanted is not None, "a caller without a context joins any load"
            join_replacement(job, wanted, options)
            asked = replace(job.target.asked, context_tokens=wanted)
            job.target = replace(job.target, asked=asked, context_tokens=wanted)
            return job
    return None


def begin_load(
    state: ClusterState,
    model: ModelFile,
    *,
    now_s: float,
    reason: str,
    wanted: int | None = None,
    options: LoadOptions = NO_LOAD_OPTIONS,
    is_extra: bool = False,
    may_evict: bool = True,
) -> LoadJob:
    """Begin another load. `is_extra`: beside the replicas that serve already."""
    state.jobs_begun += 1
    own = _load_target(state, model, Asked(context_tokens=wanted, options=options), is_extra=is_extra, now_s=now_s)
    before = find_replaced(state, model, own.asked, now_s)
    chosen = own if before is None else _load_target(state, model, before.asked, is_extra=is_extra, now_s=now_s)
    job = LoadJob(
        id=state.jobs_begun,
        model_name=model.name,
        model_digest=model.digest,
        target=chosen,
        own=None if chosen.asked == own.asked else own,
        reason=reason,
        keep_alive_ms=None if before is None else before.keep_alive_ms,
        instead_of="" if before is None else before.placement_id,
        is_extra=is_extra,
        may_evict=may_evict,
        created_s=now_s,
        moved_s=now_s,
        not_before_s=state.models[model.digest].failures.until_s,
    )
    state.jobs[job.id] = job
    state.note(
        "model.load_requested", model=model.name, context_tokens=chosen.context_tokens, asked=wanted is not None,
        reason=reason, instead_of=job.instead_of,
    )  # fmt: skip
    return job


def imagined_load(model: ModelFile, target: LoadTarget, now_s: float) -> LoadJob:
    """Return a load of one replica more that is planned and never begun."""
    return LoadJob(
        id=0,
        model_name=model.name,
        model_digest=model.digest,
        target=target,
        keep_alive_ms=None,
        is_extra=True,
        created_s=now_s,
        moved_s=now_s,
    )


def _load_target(state: ClusterState, model: ModelFile, asked: Asked, *, is_extra: bool, now_s: float) -> LoadTarget:
    """Return what a load is to meet.

    Raises:
        InvalidRequest: it contradicts what is set for the model.
    """
    target = load_target(state, model, asked)
    if is_extra or any(serving_replicas(state, model.digest)):
        tokens = grown_context_tokens(state, model, target.context_tokens, now_s)
        return replace(target, context_tokens=tokens)
    return target


def leave(state: ClusterState, caller_id: str) -> None:
    """Remove a caller that left. Its load continues."""
    state.questions.pop(caller_id, None)
    for job in state.jobs.values():
        job.callers.pop(caller_id, None)


def drop_deserted(state: ClusterState, now_s: float) -> None:
    """End loads without callers that have not begun and block one with callers."""
    waiting = [job for job in state.jobs.values() if job.callers and job.state in UNPLACED and job.waits_for]
    if not waiting:
        return
    for job in state.jobs_by_age():
        if job.was_asked and not job.callers and job.state in UNPLACED:
            fail(state, job, canceled("no request waits for the load any more, and others need the room"), now_s)


def unload(state: ClusterState, event: UnloadRequested, now_s: float) -> None:
    """Stop the replicas of a model that no operator keeps, those that load included.

    A load with callers continues, and its replica stops when their requests have ended.
    """
    model = state.model_named(event.model_name)
    if model is None:
        state.refuse(event.caller_id, _why_not(state, None, event.model_name) or model_not_found(event.model_name))
        return
    if state.leadership is None:
        state.refuse(event.caller_id, state.no_leader)
        return
    serving = sorted((runner for _, runner in serving_replicas(state, model.digest)), key=lambda one: one.placement_id)
    constraints = [constraints_of(state, model.name), *(keeping_of(state, one) for one in serving)]
    kept = max(len(serving) if one.pinned else one.replicas_min for one in constraints)
    ordered = sum(order_stop(state, one.placement_id, reason="unload", now_s=now_s) for one in serving[kept:])
    for job in state.jobs_by_age():
        if job.model_digest != model.digest or (job.is_extra and kept):
            continue
        if job.callers:
            job.keep_alive_ms = 0
        elif not kept:
            if job.state in ON_HOST:
                stop_load(state, job, reason="unload", now_s=now_s)
                ordered += 1
            fail(state, job, unavailable("the model was unloaded"), now_s)
    if not kept:
        forget_lost(state, model.digest)
    state.emit(AnswerReplicas(caller_id=event.caller_id, replicas=ordered))

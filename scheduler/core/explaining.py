"""Answers why: the last decision as it was taken, or what would be decided now. Loads nothing and stops nothing.

The numbers are those of the decision itself; none is worked out anew for the answer. A report that is missing is
measured, if no load needs the node for that; a caller without time is answered that a measurement is running.
"""

from dataclasses import replace

from common.errors import InvalidRequest
from scheduler.core.loading.crashes import shown_rows
from scheduler.core.loading.loading import plan_load
from scheduler.core.loading.requests import imagined_load
from scheduler.core.planning.candidates import MeasureFirst, Placement, Refusal
from scheduler.core.planning.explanation import Explanation, ReplicaMemory, VictimView
from scheduler.core.planning.lending import lenders_of
from scheduler.core.room.blockers import with_blockers
from scheduler.core.room.keep_cost import loss_of_replica
from scheduler.core.state.cluster_state import ClusterState, Decision, PendingExplanation
from scheduler.core.state.effects import AnswerExplained, Measure
from scheduler.core.state.events import ExplainAsked
from scheduler.core.state.load_jobs import LoadJob
from scheduler.core.state.model_constraints import constraints_of, followable, load_target
from scheduler.core.state.shared_files import keeping_of
from scheduler.core.values.asked import Asked, wanted_context_tokens
from scheduler.core.values.constraint_origins import applied_constraints
from scheduler.core.values.faults import Fault, bad_model_file, invalid_value, model_not_found
from scheduler.core.values.origins import draft_origin, origins_for
from scheduler.core.values.routing_table import device_names, with_tag
from scheduler.core.values.view import ModelFile


def explain(state: ClusterState, event: ExplainAsked, now_s: float) -> None:
    """Answer at once, whatever else is going on; a missing report is waited for only as long as the caller wants."""
    if not _answer(state, event, now_s, is_last_moment=event.wait_s <= 0):
        state.questions[event.caller_id] = PendingExplanation(asked=event, until_s=now_s + event.wait_s)


def answer_questions(state: ClusterState, now_s: float) -> None:
    """Answer waiting callers whose report has arrived or whose time is up."""
    for caller_id, question in list(state.questions.items()):
        if _answer(state, question.asked, now_s, is_last_moment=now_s >= question.until_s):
            del state.questions[caller_id]


def _answer(state: ClusterState, event: ExplainAsked, now_s: float, *, is_last_moment: bool) -> bool:
    model = state.model_named(event.model_name)
    fault = _why_not(state, model, event.model_name)
    if fault is not None or model is None:
        fault = fault or model_not_found(event.model_name)
        state.refuse(event.caller_id, fault)
        return True
    try:
        decision = state.decisions.get(model.name) if event.last else _hypothetical(state, model, event, now_s)
        decision = decision or Decision(at_s=now_s, outcome=None)
        if isinstance(decision.outcome, MeasureFirst) and not is_last_moment:
            return False
        explanation = _explanation(state, model, decision, now_s, hypothetical=not event.last)
    except InvalidRequest as error:
        state.refuse(event.caller_id, invalid_value(error.message))
        return True
    state.emit(AnswerExplained(caller_id=event.caller_id, explanation=explanation))
    return True


def _measure(state: ClusterState, wanted: MeasureFirst) -> None:
    """Have it counted, unless the node counts already. What others would lend is measured for a load only."""
    node = state.node(wanted.node_id)
    if node is None or wanted.node_id in state.measuring or lenders_of(wanted.layout):
        return
    state.measuring[node.id] = wanted
    nodes, layout = state.observed.nodes.values(), wanted.layout
    origins = origins_for(nodes, node, wanted.key.model_digest, layout.projector_digest)
    state.emit(
        Measure(
            node_id=node.id,
            address=node.address,
            key=wanted.key,
            layout=layout,
            origin=next(iter(origins), None),
            draft_origin=draft_origin(nodes, node, layout),
        )
    )


def _why_not(state: ClusterState, model: ModelFile | None, name: str) -> Fault | None:
    if state.leadership is None:
        return state.no_leader
    if model is not None and model.error:
        return bad_model_file(name, model.error)
    return None


def _hypothetical(state: ClusterState, model: ModelFile, event: ExplainAsked, now_s: float) -> Decision:
    """Plan one replica more, as if a request asked for it."""
    options = followable(state, model.name, event.options)
    wanted = wanted_context_tokens(event.context_tokens, trained=model.trained_context_tokens, sees=model.sees)
    target = load_target(state, model, Asked(context_tokens=wanted, options=options))
    if event.slots:
        target = replace(target, constraints=replace(target.constraints, slots=event.slots))
    job = imagined_load(model, target, now_s)
    job.failed.measures.update(state.refused_measures)
    # What a measurement holds is back in a moment, and often it is the one that this question has asked for.
    outcome = plan_load(state, job, now_s, measurements=False)
    if isinstance(outcome, MeasureFirst):
        _measure(state, outcome)
    outcome = with_blockers(state, job, outcome, now_s)
    return Decision(at_s=now_s, outcome=outcome, constraints=target.constraints)


def _explanation(
    state: ClusterState, model: ModelFile, decision: Decision, now_s: float, *, hypothetical: bool
) -> Explanation:
    job = next((one for one in state.jobs_by_age() if one.model_digest == model.digest), None)
    taken = decision.outcome if isinstance(decision.outcome, Placement | Refusal) else None
    victims = taken.victims if isinstance(taken, Placement) else ()
    outcome, message = _in_words(decision.outcome)
    return Explanation(
        model_name=model.name,
        model_digest=model.digest,
        hypothetical=hypothetical,
        age_s=now_s - decision.at_s,
        outcome=outcome,
        message=message,
        decision=taken,
        candidates=taken.candidates if taken is not None else (),
        device_names={
            (node.id, device.id): device.name for node in state.observed.nodes.values() for device in node.devices
        },
        victims=tuple(_victim(state, placement_id, now_s) for placement_id in victims),
        rounds=decision.rounds,
        attempts=decision.attempts,
        replicas=tuple(_replicas(state, model)),
        waits_for=_waits_for(job, now_s),
        constraints=applied_constraints(
            constraints_of(state, model.name),
            decision.constraints,
            state.policy.defaults,
            from_file=with_tag(model.name) in state.file_constraints,
        ),
        crash_rows=tuple(shown_rows(state, now_s, model.digest)),
    )


def _waits_for(job: LoadJob | None, now_s: float) -> str:
    if job is None or job.restart is None:
        return job.waits_for if job is not None else ""
    return f"{job.restart}, in {job.restart.until_s - now_s:.1f} s"


def _in_words(outcome: Placement | MeasureFirst | Refusal | None) -> tuple[str, str]:
    """Return the name of an outcome, and what there is to say about it."""
    match outcome:
        case None:
            return "none", "nothing has been decided about this model since this scheduler leads"
        case Placement():
            return "placed", outcome.note
        case MeasureFirst():
            return "measuring", f"no memory report for this yet: node {outcome.node_id}, {outcome.layout.slots} slots"
        case Refusal():
            return outcome.kind.value, outcome.message


def _victim(state: ClusterState, placement_id: str, now_s: float) -> VictimView:
    found = state.observed.replica(placement_id)
    if found is None:
        return VictimView(placement_id=placement_id, model_name="", node_id="", loss=0.0)
    node_id, runner = found
    return VictimView(
        placement_id=placement_id,
        model_name=runner.model_name,
        node_id=node_id,
        loss=loss_of_replica(state, runner, now_s),
    )


def _replicas(state: ClusterState, model: ModelFile) -> list[ReplicaMemory]:
    replicas = []
    for node_id, runner in state.observed.replicas():
        if runner.model_digest != model.digest:
            continue
        record = state.desired.get(runner.placement_id)
        planned = record.planned if record is not None else None
        replicas.append(
            ReplicaMemory(
                placement_id=runner.placement_id,
                node_id=node_id,
                device_names=device_names(state.node(node_id), runner),
                context_tokens=runner.layout.context_tokens,
                predicted_bytes=planned.total_bytes if planned is not None else 0,
                allocated_bytes=runner.memory.total_bytes if runner.memory is not None else 0,
                pinned=keeping_of(state, runner).pinned,
                speculation=runner.speculation,
            )
        )
    return replicas

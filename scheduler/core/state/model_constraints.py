"""Constraints of models from operators: the file's, and those of commands, which are stored before they take effect."""

from dataclasses import replace

from common.errors import InvalidRequest
from common.spec.load_options import NO_LOAD_OPTIONS, LoadOptions
from scheduler.core.state.cluster_state import ClusterState, LeaderTerm
from scheduler.core.state.effects import AnswerConstraints, SaveConstraints
from scheduler.core.state.events import ConstraintsAsked, ConstraintsPut
from scheduler.core.state.load_jobs import LoadTarget
from scheduler.core.values.asked import Asked, chosen_context_tokens
from scheduler.core.values.constraint_origins import defaults_for
from scheduler.core.values.constraints import NO_CONSTRAINTS, Constraints, ModelConstraints, unmatched
from scheduler.core.values.faults import Fault, invalid_value
from scheduler.core.values.routing_table import with_tag
from scheduler.core.values.view import ModelFile

MODELS_MAX = 4096


def constraints_of(state: ClusterState, model_name: str) -> Constraints:
    """Return the constraints of a model. The file wins for the models that it names."""
    if not state.file_constraints and not state.constraints:
        return NO_CONSTRAINTS
    name = with_tag(model_name)
    return state.file_constraints.get(name) or state.constraints.get(name) or NO_CONSTRAINTS


def load_constraints(state: ClusterState, model_name: str, options: LoadOptions = NO_LOAD_OPTIONS) -> Constraints:
    """Return the constraints of a load: the operator's, the request's, and the cluster's defaults beneath both.

    Raises:
        InvalidRequest: the request contradicts the constraints; the text names the option.
    """
    return constraints_of(state, model_name).with_request(options).with_defaults(state.policy.defaults)


def load_target(state: ClusterState, model: ModelFile, asked: Asked) -> LoadTarget:
    """Return the target of a load for these options.

    Raises:
        InvalidRequest: they contradict what is set for the model.
    """
    constraints = load_constraints(state, model.name, asked.options)
    tokens = chosen_context_tokens(
        asked.context_tokens,
        configured=constraints.context_tokens or state.policy.context_tokens,
        trained=model.trained_context_tokens,
        sees=model.sees,
    )
    return LoadTarget(asked=asked, context_tokens=tokens, constraints=constraints)


def followable(state: ClusterState, model_name: str, options: LoadOptions) -> LoadOptions:
    """Return a request's options without a `num_gpu` or `main_gpu` that no node can follow.

    Clients and Modelfiles carry them to every machine, also to those without a GPU: there they ask for nothing, whether
    a replica serves or not. What operators set is refused instead (`put`).
    """
    if options.num_gpu and _matches_nothing(state, model_name, options, "num_gpu"):
        options = replace(options, num_gpu=None)
    if options.main_gpu is not None and _matches_nothing(state, model_name, options, "main_gpu"):
        options = replace(options, main_gpu=None)
    return options


def _matches_nothing(state: ClusterState, model_name: str, options: LoadOptions, name: str) -> bool:
    try:
        constraints = load_constraints(state, model_name, options)
    except InvalidRequest:  # planning with them reports it
        return False
    return unmatched(constraints, state.observed.nodes.values()) == name


def constrained_models(state: ClusterState) -> list[str]:
    """Return the names of all models with constraints of an operator."""
    return sorted(state.constraints.keys() | state.file_constraints.keys())


def tell(state: ClusterState, event: ConstraintsAsked) -> None:
    """Answer what is set, for one model or all of them."""
    names = [with_tag(event.model_name)] if event.model_name else constrained_models(state)
    state.emit(AnswerConstraints(caller_id=event.caller_id, models=tuple(_listed(state, name) for name in names)))


def put(state: ClusterState, event: ConstraintsPut, term: LeaderTerm) -> None:
    """Check constraints and order their save. `constraints` None: forget them."""
    name = _known_name(state, event.model_name)
    if fault := _why_not(state, name, event.constraints):
        state.refuse(event.caller_id, fault)
        return
    if event.constraints is None and name not in state.constraints:
        state.emit(AnswerConstraints(caller_id=event.caller_id, models=(_listed(state, name),), was_set=False))
        return
    state.emit(
        SaveConstraints(fence=term.fence, caller_id=event.caller_id, model_name=name, constraints=event.constraints)
    )


def on_saved(state: ClusterState, save: SaveConstraints) -> None:
    """Apply constraints that the store has saved."""
    was_set = save.model_name in state.constraints
    if save.constraints is None:
        state.constraints.pop(save.model_name, None)
    else:
        state.constraints[save.model_name] = save.constraints
    state.preloaded.discard(save.model_name)
    state.note("constraints.set", model=save.model_name, forgotten=save.constraints is None)
    listed = _listed(state, save.model_name)
    state.emit(AnswerConstraints(caller_id=save.caller_id, models=(listed,), was_set=was_set))


def _known_name(state: ClusterState, written: str) -> str:
    model = state.model_named(written)
    return model.name if model is not None else with_tag(written)


def _why_not(state: ClusterState, name: str, constraints: Constraints | None) -> Fault | None:
    if name in state.file_constraints:
        return invalid_value(f'the constraints of "{name}" are set in the file of PUNA_PLACEMENTS')
    if constraints is None:
        return None
    if constraints.draft and _known_name(state, constraints.draft) == name:
        return invalid_value(f'"draft" names the model itself, "{name}"')
    if name not in state.constraints and len(state.constraints) >= MODELS_MAX:
        return invalid_value(f"constraints of more than {MODELS_MAX} models")
    nodes = tuple(state.observed.nodes.values())
    if nodes and (wrong := unmatched(constraints, nodes)):
        return invalid_value(f'"{wrong}" matches no node or device of this cluster')
    return None


def _listed(state: ClusterState, name: str) -> ModelConstraints:
    return ModelConstraints(
        model_name=name,
        constraints=constraints_of(state, name),
        from_file=name in state.file_constraints,
        defaults=defaults_for(constraints_of(state, name), state.policy.defaults),
    )

"""What operators want of models: a file's wishes, and those of commands, which are written down before they count."""

from dataclasses import replace

from common.errors import InvalidRequest
from scheduler.core.books.books import Books
from scheduler.core.books.effects import AnswerConstraints, AnswerFailed, CheckLeadership, SaveConstraints
from scheduler.core.books.events import ConstraintsAsked, ConstraintsPut, ConstraintsSaved, ConstraintsSaveFailed
from scheduler.core.values.asked import NO_OPTIONS, LoadOptions
from scheduler.core.values.constraint_origins import defaults_for
from scheduler.core.values.constraints import NO_CONSTRAINTS, Constraints, ModelConstraints, unmatched
from scheduler.core.values.faults import STALE_FENCE, Fault, invalid_value, unavailable
from scheduler.core.values.routing_table import find_model, with_tag

MODELS_MAX = 4096


def constraints_of(books: Books, model_name: str) -> Constraints:
    """What holds for a model. The file wins for the models that it names."""
    if not books.file_constraints and not books.constraints:
        return NO_CONSTRAINTS
    name = with_tag(model_name)
    return books.file_constraints.get(name) or books.constraints.get(name) or NO_CONSTRAINTS


def load_constraints(books: Books, model_name: str, options: LoadOptions = NO_OPTIONS) -> Constraints:
    """What a load is planned with: the wishes, what a request asks, and the cluster's defaults beneath both.

    Raises:
        InvalidRequest: the request contradicts the wishes; the text names the option.
    """
    return constraints_of(books, model_name).with_request(options).with_defaults(books.policy.defaults)


def followable(books: Books, model_name: str, options: LoadOptions) -> LoadOptions:
    """A request's options without a `main_gpu` that no node has, as far as the model's wishes leave it one.

    Clients and Modelfiles carry one to every machine, 0 also where there is no GPU: it asks for nothing there, whether
    a replica serves or not. What operators set is refused instead (`put`).
    """
    if options.main_gpu is None:
        return options
    try:
        wishes = load_constraints(books, model_name, options)
    except InvalidRequest:  # whoever plans with them says so
        return options
    is_nowhere = unmatched(wishes, books.observed.nodes.values()) == "main_gpu"
    return replace(options, main_gpu=None) if is_nowhere else options


def wished_models(books: Books) -> list[str]:
    """Every model that somebody has set something for, by name."""
    return sorted(books.constraints.keys() | books.file_constraints.keys())


def tell(books: Books, event: ConstraintsAsked) -> None:
    """Answer what is set, for one model or all of them."""
    if books.leadership is None:
        _refuse(books, event.caller_id, unavailable(books.no_leader_why))
        return
    names = [with_tag(event.model_name)] if event.model_name else wished_models(books)
    books.emit(AnswerConstraints(caller_id=event.caller_id, models=tuple(_wish(books, name) for name in names)))


def put(books: Books, event: ConstraintsPut) -> None:
    """Check a wish, and have it written down. `constraints` None: forget it."""
    name = _known_name(books, event.model_name)
    if books.leadership is None:
        _refuse(books, event.caller_id, unavailable(books.no_leader_why))
        return
    if fault := _why_not(books, name, event.constraints):
        _refuse(books, event.caller_id, fault)
        return
    if event.constraints is None and name not in books.constraints:
        books.emit(AnswerConstraints(caller_id=event.caller_id, models=(_wish(books, name),), was_set=False))
        return
    books.emit(
        SaveConstraints(
            fence=books.leadership.fence, caller_id=event.caller_id, model_name=name, constraints=event.constraints
        )
    )


def on_saved(books: Books, event: ConstraintsSaved) -> None:
    """The store has it: from here on it counts."""
    was_set = event.model_name in books.constraints
    if event.constraints is None:
        books.constraints.pop(event.model_name, None)
    else:
        books.constraints[event.model_name] = event.constraints
    books.preloaded.discard(event.model_name)
    books.note("constraints.set", model=event.model_name, forgotten=event.constraints is None)
    wish = _wish(books, event.model_name)
    books.emit(AnswerConstraints(caller_id=event.caller_id, models=(wish,), was_set=was_set))


def on_save_failed(books: Books, event: ConstraintsSaveFailed) -> None:
    """Nothing has changed."""
    if event.fault.reason == STALE_FENCE:
        books.emit(CheckLeadership())
    _refuse(books, event.caller_id, event.fault)


def _known_name(books: Books, written: str) -> str:
    model = find_model(tuple(books.observed.nodes.values()), written)
    return model.name if model is not None else with_tag(written)


def _why_not(books: Books, name: str, constraints: Constraints | None) -> Fault | None:
    if name in books.file_constraints:
        return invalid_value(f'the constraints of "{name}" are set in the file of PUNA_PLACEMENTS')
    if constraints is None:
        return None
    if name not in books.constraints and len(books.constraints) >= MODELS_MAX:
        return invalid_value(f"constraints of more than {MODELS_MAX} models")
    nodes = tuple(books.observed.nodes.values())
    if nodes and (wrong := unmatched(constraints, nodes)):
        return invalid_value(f'"{wrong}" matches no node or device of this cluster')
    return None


def _wish(books: Books, name: str) -> ModelConstraints:
    return ModelConstraints(
        model_name=name,
        constraints=constraints_of(books, name),
        from_file=name in books.file_constraints,
        defaults=defaults_for(constraints_of(books, name), books.policy.defaults),
    )


def _refuse(books: Books, caller_id: str, fault: Fault) -> None:
    books.emit(AnswerFailed(callers=(caller_id,), fault=fault))

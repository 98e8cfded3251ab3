"""Second names of models: written down before they count, told to every gateway with the routes.

An alias points to a model, never to another alias, so that following one ends after one step. Standbys read what the
leader has written, because gateways may watch any scheduler.
"""

from collections.abc import Mapping

from scheduler.core.books.books import Books
from scheduler.core.books.effects import AnswerAlias, AnswerFailed, CheckLeadership, SaveAlias
from scheduler.core.books.events import AliasesRead, AliasPut, AliasSaved, AliasSaveFailed
from scheduler.core.values.faults import STALE_FENCE, Fault, invalid_value, model_not_found, unavailable
from scheduler.core.values.model_alias import ModelAlias
from scheduler.core.values.routing_table import find_model, with_tag

# Far more than people name; the whole table goes to every gateway with every change of a route.
ALIASES_MAX = 1024


def key_of(name: str) -> str:
    """The same string for every spelling of a name."""
    return with_tag(name).lower()


def take_in(books: Books, event: AliasPut | AliasSaved | AliasSaveFailed | AliasesRead) -> None:
    """What operators want, and what became of it."""
    match event:
        case AliasPut():
            put(books, event)
        case AliasSaved():
            on_saved(books, event)
        case AliasSaveFailed():
            on_save_failed(books, event)
        case AliasesRead():
            if books.leadership is None:
                books.aliases = dict(event.aliases)


def take_over(books: Books, stored: Mapping[str, ModelAlias] | None, fence: int) -> None:
    """Lead from here on, with what the store knows. None: it may have lost all; what this process knows is written."""
    books.pending_aliases.clear()
    if stored is not None:
        books.aliases = dict(stored)
        return
    books.aliases = dict(books.aliases or {})
    for key, alias in books.aliases.items():
        books.emit(SaveAlias(fence=fence, caller_id="", key=key, alias=alias))


def put(books: Books, event: AliasPut) -> None:
    """Check an alias, and have it written down. `target` None: forget it."""
    key = key_of(event.name)
    if books.leadership is None or books.aliases is None:
        _refuse(books, event.caller_id, unavailable(books.no_leader_why))
        return
    if event.target is None and key not in _wanted(books):
        books.emit(AnswerAlias(caller_id=event.caller_id, alias=None, was_set=False))
        return
    alias: ModelAlias | None = None
    if event.target is not None:
        if fault := _why_not(books, event.name, event.target):
            _refuse(books, event.caller_id, fault)
            return
        alias = ModelAlias(name=with_tag(event.name), target=_model_name(books, event.target))
    books.pending_aliases[key] = alias
    books.emit(SaveAlias(fence=books.leadership.fence, caller_id=event.caller_id, key=key, alias=alias))


def on_saved(books: Books, event: AliasSaved) -> None:
    """The store has it: from here on it counts."""
    _settle(books, event.key, event.alias)
    if books.aliases is None:
        books.aliases = {}
    before = books.aliases.pop(event.key, None)
    if event.alias is not None:
        books.aliases[event.key] = event.alias
    if event.alias != before:
        target = event.alias.target if event.alias is not None else None
        books.note("alias.set" if target else "alias.removed", alias=event.key, model=target or "")
    if event.caller_id:
        books.emit(AnswerAlias(caller_id=event.caller_id, alias=event.alias, was_set=before is not None))


def on_save_failed(books: Books, event: AliasSaveFailed) -> None:
    """Nothing has changed."""
    _settle(books, event.key, event.alias)
    if event.fault.reason == STALE_FENCE:
        books.emit(CheckLeadership())
    if event.caller_id:
        _refuse(books, event.caller_id, event.fault)


def _settle(books: Books, key: str, alias: ModelAlias | None) -> None:
    if key in books.pending_aliases and books.pending_aliases[key] == alias:
        del books.pending_aliases[key]


def _wanted(books: Books) -> dict[str, ModelAlias]:
    """Every alias, as if what is being written were written: two commands may not make together what neither may."""
    wanted = {**(books.aliases or {}), **books.pending_aliases}
    return {key: alias for key, alias in wanted.items() if alias is not None}


def _why_not(books: Books, name: str, target: str) -> Fault | None:
    key, wanted = key_of(name), _wanted(books)
    if key == key_of(target):
        return invalid_value(f'the alias "{name}" would point to itself')
    if (other := wanted.get(key_of(target))) is not None:
        return invalid_value(f'"{target}" is itself an alias, of "{other.target}"; an alias points to a model')
    pointing = sorted(alias.name for alias in wanted.values() if key_of(alias.target) == key)
    if pointing:
        return invalid_value(f'the alias "{pointing[0]}" points to "{name}"; an alias points to a model')
    if key not in wanted and len(wanted) >= ALIASES_MAX:
        return invalid_value(f"more than {ALIASES_MAX} aliases")
    if not books.observed.was_seen:
        return unavailable("the inventory is not known yet")
    if find_model(tuple(books.observed.nodes.values()), target) is None:
        return model_not_found(target)
    return None


def _model_name(books: Books, written: str) -> str:
    model = find_model(tuple(books.observed.nodes.values()), written)
    assert model is not None  # checked before
    return model.name


def _refuse(books: Books, caller_id: str, fault: Fault) -> None:
    books.emit(AnswerFailed(callers=(caller_id,), fault=fault))

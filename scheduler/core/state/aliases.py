"""Second names of models: saved before they count, sent to every gateway with the routes.

An alias points to a model, never to another alias, so that following one ends after one step. Standbys read what the
leader has written, because gateways may watch any scheduler.
"""

from collections.abc import Mapping

from scheduler.core.state.cluster_state import ClusterState, LeaderTerm, lost_keys
from scheduler.core.state.effects import AnswerAlias, SaveAlias
from scheduler.core.state.events import AliasesRead, AliasPut
from scheduler.core.values.faults import Fault, invalid_value, model_not_found, unavailable
from scheduler.core.values.routing_table import ModelAlias, with_tag

# Far more than people name; the whole table goes to every gateway with every change of a route.
ALIASES_MAX = 1024


def key_of(name: str) -> str:
    """Return the same string for every spelling of a name."""
    return with_tag(name).lower()


def read(state: ClusterState, event: AliasesRead) -> None:
    """Take the aliases of the store, unless this scheduler is the one that writes them."""
    if state.leadership is None:
        state.aliases = dict(event.aliases)


def take_over(state: ClusterState, stored: Mapping[str, ModelAlias] | None, fence: int) -> None:
    """Take the aliases of the store as a new leader, or write those of this process that the store has lost.

    None: it may have lost all, also those that this process has read from it.
    """
    state.pending_aliases.clear()
    if stored is not None and state.leadership is None:
        state.aliases = dict(stored)
        return
    own = state.aliases = dict(state.aliases or {})
    for key in lost_keys(own, stored or {}):
        state.emit(SaveAlias(fence=fence, caller_id="", key=key, alias=own.get(key)))


def put(state: ClusterState, event: AliasPut, term: LeaderTerm) -> None:
    """Check an alias, and have it written down. `target` None: forget it."""
    key = key_of(event.name)
    if event.target is None and key not in _wanted(state):
        state.emit(AnswerAlias(caller_id=event.caller_id, alias=None, was_set=False))
        return
    alias: ModelAlias | None = None
    if event.target is not None:
        if fault := _why_not(state, event.name, event.target):
            state.refuse(event.caller_id, fault)
            return
        alias = ModelAlias(name=with_tag(event.name), target=_model_name(state, event.target))
    state.pending_aliases[key] = alias
    state.emit(SaveAlias(fence=term.fence, caller_id=event.caller_id, key=key, alias=alias))


def on_saved(state: ClusterState, save: SaveAlias) -> None:
    """Apply an alias that the store has saved."""
    _settle(state, save.key, save.alias)
    if state.aliases is None:
        state.aliases = {}
    before = state.aliases.pop(save.key, None)
    if save.alias is not None:
        state.aliases[save.key] = save.alias
    if save.alias != before:
        target = save.alias.target if save.alias is not None else None
        state.note("alias.set" if target else "alias.removed", alias=save.key, model=target or "")
    if save.caller_id:
        state.emit(AnswerAlias(caller_id=save.caller_id, alias=save.alias, was_set=before is not None))


def on_save_failed(state: ClusterState, save: SaveAlias, fault: Fault) -> None:
    """Refuse an alias that could not be saved."""
    _settle(state, save.key, save.alias)
    if save.caller_id:
        state.refuse(save.caller_id, fault)


def _settle(state: ClusterState, key: str, alias: ModelAlias | None) -> None:
    if key in state.pending_aliases and state.pending_aliases[key] == alias:
        del state.pending_aliases[key]


def _wanted(state: ClusterState) -> dict[str, ModelAlias]:
    """Return all aliases, pending ones included: two commands must not combine to what each alone must not do."""
    wanted = {**(state.aliases or {}), **state.pending_aliases}
    return {key: alias for key, alias in wanted.items() if alias is not None}


def _why_not(state: ClusterState, name: str, target: str) -> Fault | None:
    key, wanted = key_of(name), _wanted(state)
    if key == key_of(target):
        return invalid_value(f'the alias "{name}" would point to itself')
    if (other := wanted.get(key_of(target))) is not None:
        return invalid_value(f'"{target}" is itself an alias, of "{other.target}"; an alias points to a model')
    pointing = sorted(alias.name for alias in wanted.values() if key_of(alias.target) == key)
    if pointing:
        return invalid_value(f'the alias "{pointing[0]}" points to "{name}"; an alias points to a model')
    if key not in wanted and len(wanted) >= ALIASES_MAX:
        return invalid_value(f"more than {ALIASES_MAX} aliases")
    if not state.observed.was_seen:
        return unavailable("the inventory is not known yet")
    if state.model_named(target) is None:
        return model_not_found(target)
    return None


def _model_name(state: ClusterState, written: str) -> str:
    model = state.model_named(written)
    assert model is not None  # checked before
    return model.name

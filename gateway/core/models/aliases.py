"""Second names of models: what they lead to, and what lists show of them. Pure.

An alias wins over a model of the same name. It leads to a model in one step, so there are no circles to walk in.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from common.errors import InvalidRequest, ModelNotFound
from gateway.core.models.routes import RouteInfo
from gateway.core.request.model_names import model_not_found, parse_model_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """A second name of a model, and the model's own. Both as written, with tags."""

    name: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedModel:
    """A name that requests may use, and what is behind it."""

    name: str
    route: RouteInfo
    alias_of: str = ""  # the model's own name; empty: this is it


def new_alias(text: str) -> str:
    """Return the name of an alias as it is stored.

    Raises:
        InvalidRequest: no model could have this name, so no request could ask for it.
    """
    try:
        return parse_model_name(text).short
    except ModelNotFound as error:
        raise InvalidRequest(f'"{text}" cannot be the name of a model', param="alias") from error


def alias_leads_nowhere(requested: str, alias: Alias) -> ModelNotFound:
    """Build the error for an alias of a model that is gone. It begins as clients know it."""
    text = f"model '{requested}' not found: it is an alias of '{alias.target}', which no node has"
    return ModelNotFound(text, param="model")


def is_open(alias: Alias, may_use: Callable[[str], bool]) -> bool:
    """Return True if a key may use an alias: it needs both names, so that an alias opens no further model."""
    return may_use(alias.name) and may_use(alias.target)


def listed(
    routes: Iterable[RouteInfo], aliases: Mapping[str, Alias], may_use: Callable[[str], bool]
) -> list[ListedModel]:
    """List every name that a key may use, each model followed by its aliases. An alias covers a model of the same name.

    `aliases`: by key of their name. Those that lead nowhere are no names of models.
    """
    by_target: dict[str, list[Alias]] = {}
    for alias in aliases.values():
        by_target.setdefault(parse_model_name(alias.target).key, []).append(alias)
    found: list[ListedModel] = []
    for route in routes:
        key = parse_model_name(route.model.name).key
        if key not in aliases and may_use(route.model.name):
            found.append(ListedModel(name=route.model.name, route=route))
        found.extend(
            ListedModel(
                name=alias.name,
                route=replace(route, model=replace(route.model, name=alias.name)),
                alias_of=route.model.name,
            )
            for alias in sorted(by_target.get(key, ()), key=lambda one: one.name)
            if is_open(alias, may_use)
        )
    return found


def resolved(requested: str, aliases: Mapping[str, Alias], may_use: Callable[[str], bool]) -> tuple[str, Alias | None]:
    """Return the name of the model that is meant, and the alias that led there.

    Raises:
        ModelNotFound: the text is no name, or one of the names is not for this caller.
    """
    if not may_use(requested):
        raise model_not_found(requested)
    alias = aliases.get(parse_model_name(requested).key)
    if alias is None:
        return requested, None
    if not is_open(alias, may_use):
        raise model_not_found(requested)
    return alias.target, alias

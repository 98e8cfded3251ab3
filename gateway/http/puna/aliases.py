"""/puna/v1/aliases: second names of models."""

from collections.abc import Callable, Mapping
from functools import partial

from pydantic import Field

from common.telemetry.logs import get_logger
from gateway.answers.model_access import check_visible
from gateway.core.keys.keys import Scope
from gateway.core.models.aliases import Alias, is_open, new_alias
from gateway.core.request.model_names import given_model, parse_model_name
from gateway.http.endpoint.exchange import Exchange
from gateway.http.endpoint.fields import OwnBody, validated
from gateway.http.endpoint.response_model import ResponseModel
from gateway.http.endpoint.route_errors import OF_MODEL_NAMES, OF_THE_CLUSTER
from gateway.http.endpoint.router import Route
from gateway.http.endpoint.service import Endpoints, Service
from gateway.keys.visits import may_use

log = get_logger()

# An alias is published within milliseconds; a call that waits longer than this returns before it is.
SHOWN_WITHIN_S = 5.0
_ONE = "/puna/v1/aliases/{alias}"


class AliasBody(OwnBody):
    """PUT /puna/v1/aliases/{alias}."""

    model: str = Field(default="", description="The model that the name shall point to. Required.")


class AliasAnswer(ResponseModel):
    """One alias."""

    alias: str
    model: str = Field(description="The model that it points to")
    exists: bool = Field(description="False: no node has the model any more")


class AliasList(ResponseModel):
    """GET /puna/v1/aliases."""

    aliases: list[AliasAnswer]


class AliasRemoved(ResponseModel):
    """DELETE /puna/v1/aliases/{alias}."""

    alias: str
    was_set: bool


def alias_routes(service: Service) -> list[Route]:
    """List the routes of aliases."""
    aliases = Aliases(service)
    admin = partial(Route, scope=Scope.ADMIN_CLUSTER, errors=OF_THE_CLUSTER | OF_MODEL_NAMES)
    return [
        Route(
            "GET",
            "/puna/v1/aliases",
            aliases.list_all,
            "Second names of models",
            scope=Scope.MODELS_READ,
            response=AliasList,
        ),
        admin("PUT", _ONE, aliases.put, "Give a model a second name", body=AliasBody, response=AliasAnswer),
        admin("DELETE", _ONE, aliases.remove, "Forget a second name; the model stays", response=AliasRemoved),
    ]


class Aliases(Endpoints):
    """Aliases, stored by the scheduler. Once a call that sets one returns, the next call can use it."""

    async def list_all(self, exchange: Exchange) -> None:
        """GET /puna/v1/aliases: those that the caller may use, by name."""
        known = self.models.routes.aliases.values()
        found = [self._shown(alias) for alias in known if is_open(alias, may_use)]
        await exchange.respond_json({"aliases": sorted(found, key=lambda one: str(one["alias"]))})

    async def put(self, exchange: Exchange) -> None:
        """PUT /puna/v1/aliases/{alias}: point it to a model, whatever it pointed to before."""
        body = validated(AliasBody, await exchange.json())
        given_model(body.model)
        name = new_alias(exchange.path_value)
        check_visible(name)
        check_visible(body.model)
        target = parse_model_name(body.model).short
        route = self.models.routes.find(target)
        exchange.record.changes["to"] = target
        stored = await self.scheduler.put_alias(name, route.model.name if route is not None else target)
        alias = Alias(name=stored.name, target=stored.target)
        await self._until(lambda known: known.get(parse_model_name(name).key) == alias)
        await exchange.respond_json(self._shown(alias))

    async def remove(self, exchange: Exchange) -> None:
        """DELETE /puna/v1/aliases/{alias}."""
        name = new_alias(exchange.path_value)
        check_visible(name)
        was_set = await self.scheduler.remove_alias(name)
        await self._until(lambda known: parse_model_name(name).key not in known)
        await exchange.respond_json({"alias": name, "was_set": was_set})

    def _shown(self, alias: Alias) -> dict[str, object]:
        exists = self.models.routes.find(alias.target) is not None
        return {"alias": alias.name, "model": alias.target, "exists": exists}

    async def _until(self, holds: Callable[[Mapping[str, Alias]], bool]) -> None:
        """Wait until the routes of this gateway say so, too."""
        routes = self.models.routes
        if not await routes.until(lambda: holds(routes.aliases), SHOWN_WITHIN_S):
            log.warning("alias.not_shown")

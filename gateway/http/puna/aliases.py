"""/puna/v1/aliases: second names of models."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from common.errors import InvalidRequest
from common.telemetry.logs import get_logger
from gateway.answers.model_access import check_visible
from gateway.core.asked.model_names import parse_model_name
from gateway.core.keys.keys import Scope
from gateway.core.models.aliases import Alias, is_open, new_alias
from gateway.http.endpoint.exchange import Exchange
from gateway.http.endpoint.fields import validated
from gateway.http.endpoint.route_errors import OF_MODEL_NAMES, OF_THE_CLUSTER
from gateway.http.endpoint.router import Route
from gateway.http.endpoint.service import Service
from gateway.http.puna.alias_bodies import AliasAnswer, AliasBody, AliasList, AliasRemoved
from gateway.http.puna.placements import asked
from gateway.keys.visits import may_use

log = get_logger()

# News of an alias take milliseconds; who waits for longer than this finds it a moment later.
SHOWN_WITHIN_S = 5.0
_ONE = "/puna/v1/aliases/{alias}"


def alias_routes(service: Service) -> list[Route]:
    """Their part of the table."""
    aliases = Aliases(service)
    return [
        Route(
            method="GET",
            path="/puna/v1/aliases",
            scope=Scope.MODELS_READ,
            endpoint=aliases.list_all,
            summary="Second names of models",
            response=AliasList,
        ),
        Route(
            method="PUT",
            path=_ONE,
            scope=Scope.ADMIN_CLUSTER,
            endpoint=aliases.put,
            summary="Give a model a second name",
            body=AliasBody,
            response=AliasAnswer,
            errors=OF_THE_CLUSTER | OF_MODEL_NAMES,
        ),
        Route(
            method="DELETE",
            path=_ONE,
            scope=Scope.ADMIN_CLUSTER,
            endpoint=aliases.remove,
            summary="Forget a second name; the model stays",
            response=AliasRemoved,
            errors=OF_THE_CLUSTER | OF_MODEL_NAMES,
        ),
    ]


@dataclass(frozen=True, slots=True)
class Aliases:
    """Kept by the scheduler; who hears that one is set can use it here in the next call."""

    service: Service

    async def list_all(self, exchange: Exchange) -> None:
        """GET /puna/v1/aliases: those that the caller may use, by name."""
        known = self._known().values()
        found = [self._shown(alias) for alias in known if is_open(alias, may_use)]
        await exchange.respond_json({"aliases": sorted(found, key=lambda one: str(one["alias"]))})

    async def put(self, exchange: Exchange) -> None:
        """PUT /puna/v1/aliases/{alias}: point it to a model, whatever it pointed to before."""
        body = validated(AliasBody, await exchange.json())
        if not body.model:
            raise InvalidRequest("model is required", param="model")
        name = new_alias(exchange.path_value)
        check_visible(name)
        check_visible(body.model)
        target = parse_model_name(body.model).short
        route = self.service.inference.models.routes.find(target)
        stored = await asked(self.service.scheduler.put_alias(name, route.model.name if route is not None else target))
        alias = Alias(name=stored.name, target=stored.target)
        await self._until(lambda known: known.get(parse_model_name(name).key) == alias)
        await exchange.respond_json(self._shown(alias))

    async def remove(self, exchange: Exchange) -> None:
        """DELETE /puna/v1/aliases/{alias}."""
        name = new_alias(exchange.path_value)
        check_visible(name)
        was_set = await asked(self.service.scheduler.remove_alias(name))
        await self._until(lambda known: parse_model_name(name).key not in known)
        await exchange.respond_json({"alias": name, "was_set": was_set})

    def _known(self) -> Mapping[str, Alias]:
        return self.service.inference.models.routes.aliases

    def _shown(self, alias: Alias) -> dict[str, object]:
        exists = self.service.inference.models.routes.find(alias.target) is not None
        return {"alias": alias.name, "model": alias.target, "exists": exists}

    async def _until(self, holds: Callable[[Mapping[str, Alias]], bool]) -> None:
        """Wait until the routes of this gateway say so, too."""
        routes = self.service.inference.models.routes
        changed = asyncio.Event()
        unsubscribe = routes.subscribe(changed.set)
        try:
            async with asyncio.timeout(SHOWN_WITHIN_S):
                while not holds(routes.aliases):
                    await changed.wait()
                    changed.clear()
        except TimeoutError:
            log.warning("alias.not_shown")
        finally:
            unsubscribe()

"""The routes as last heard. They outlive the scheduler: what was warm keeps serving."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from common.errors import ModelNotFound, PunaError
from common.telemetry.logs import get_logger
from gateway.converters.routes import route_from_proto
from gateway.core.asked.model_names import parse_model_name
from gateway.core.models.aliases import Alias
from gateway.core.models.routes import RouteInfo
from gateway.ports import Scheduler
from protos import scheduler_pb2

log = get_logger()

RECONNECT_S = 1.0


class RouteCache:
    """The routing table. Single owner: the event loop; `on_change` is called after every change."""

    def __init__(self) -> None:
        self._routes: dict[str, RouteInfo] = {}
        self._protos: dict[str, scheduler_pb2.ModelRoute] = {}  # as received, for gRPC clients
        self._aliases: dict[str, Alias] = {}
        self._listeners: list[Callable[[], None]] = []
        self.heard = False  # at least one whole table arrived

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after every change, until what is returned is called."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    @property
    def aliases(self) -> Mapping[str, Alias]:
        """By key of their name."""
        return self._aliases

    def find(self, name: str) -> RouteInfo | None:
        """The route of a model by any spelling of its own name; None: unknown. Aliases are followed before.

        Raises:
            ModelNotFound: the text is no model name at all.
        """
        return self._routes.get(parse_model_name(name).key)

    def by_key(self, key: str) -> RouteInfo | None:
        """The route of a model by its normalised name."""
        return self._routes.get(key)

    def all(self) -> list[RouteInfo]:
        """Every route, newest model first."""
        return sorted(self._routes.values(), key=lambda r: (-r.model.modified_at_unix_s, r.model.name))

    def holds(self, text: str) -> bool:
        """True if a text is the name of a model."""
        try:
            return self.find(text) is not None
        except ModelNotFound:
            return False

    @property
    def has_replicas(self) -> bool:
        """True if anything is loaded, or about to be."""
        return any(route.replicas for route in self._routes.values())

    def proto_of(self, route: RouteInfo) -> scheduler_pb2.ModelRoute:
        """A route of this cache as received."""
        return self._protos[parse_model_name(route.model.name).key]

    def replace_all(self, table: scheduler_pb2.RouteTable) -> None:
        """A new table takes the place of the old one."""
        self._protos = {parse_model_name(route.model.name).key: route for route in table.routes}
        self._routes = {key: route_from_proto(route) for key, route in self._protos.items()}
        if table.HasField("aliases"):  # else that scheduler has not read them yet
            self._aliases = {
                parse_model_name(alias.name).key: Alias(name=alias.name, target=alias.target)
                for alias in table.aliases.aliases
            }
        self.heard = True
        self._changed()

    def merge(self, route: scheduler_pb2.ModelRoute) -> RouteInfo:
        """One route that the scheduler gave outside the table; it is newer."""
        info, key = route_from_proto(route), parse_model_name(route.model.name).key
        self._routes[key], self._protos[key] = info, route
        self._changed()
        return info

    def _changed(self) -> None:
        for listener in tuple(self._listeners):
            listener()


async def watch_routes(cache: RouteCache, scheduler: Scheduler) -> None:
    """Keep the cache current until cancelled. A scheduler that is gone changes nothing."""
    while True:
        with contextlib.suppress(PunaError):
            async for table in scheduler.watch_routes():
                cache.replace_all(table)
        log.warning("routes.lost", kept=len(cache.all()))
        await asyncio.sleep(RECONNECT_S)

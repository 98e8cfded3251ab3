"""The routes as last heard. They outlive the scheduler: what was warm keeps serving."""

import asyncio
from collections.abc import Callable, Iterable, Mapping

from common.errors import ModelNotFound
from common.telemetry.logs import get_logger
from common.telemetry.skipped_rows import BAD_NAME, SkippedRows
from gateway import metrics
from gateway.converters.routes import route_from_proto
from gateway.core.models.aliases import Alias
from gateway.core.models.routes import RouteInfo
from gateway.core.request.model_names import parse_model_name
from protos import scheduler_pb2
from scheduler.client import SchedulerClient

log = get_logger()


class RouteCache:
    """The routing table. Single owner: the event loop; `on_change` is called after every change."""

    def __init__(self) -> None:
        self._routes: dict[str, RouteInfo] = {}
        self._protos: dict[str, scheduler_pb2.ModelRoute] = {}  # as received, for gRPC clients
        self._aliases: dict[str, Alias] = {}
        self._listeners: list[Callable[[], None]] = []
        self._skipped = SkippedRows(metrics.SKIPPED_ROWS)
        self.heard = False  # at least one whole table arrived
        self.table = scheduler_pb2.RouteTable()  # the last whole one
        self.fence = 0  # of the scheduler that leads; 0: not known
        self.removed_nodes: frozenset[str] = frozenset()  # on which no answer may go on
        self.is_current = False  # the stream of tables is open

    def connected(self, is_connected: bool) -> None:
        """Note that the stream of tables is open, or ended."""
        self.is_current = is_connected
        metrics.ROUTES_CONNECTED.set(is_connected)

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after every change, until what is returned is called."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def until(self, holds: Callable[[], bool], within_s: float) -> bool:
        """Return True once a condition on the routes holds; False if it does not in so many seconds."""
        met = asyncio.Event()

        def look() -> None:
            if holds():
                met.set()

        unsubscribe = self.subscribe(look)
        look()
        try:
            async with asyncio.timeout(within_s):
                return await met.wait()
        except TimeoutError:
            return False
        finally:
            unsubscribe()

    @property
    def aliases(self) -> Mapping[str, Alias]:
        """By key of their name."""
        return self._aliases

    def find(self, name: str) -> RouteInfo | None:
        """Find the route of a model by any spelling of its own name; None: unknown. Aliases are resolved before.

        Raises:
            ModelNotFound: the text is no model name at all.
        """
        return self._routes.get(parse_model_name(name).key)

    def by_key(self, key: str) -> RouteInfo | None:
        """Find the route of a model by its normalised name."""
        return self._routes.get(key)

    def all(self) -> list[RouteInfo]:
        """List every route, newest model first."""
        return sorted(self._routes.values(), key=lambda r: (-r.model.modified_at_unix_s, r.model.name))

    def holds(self, text: str) -> bool:
        """Return True if a text is the name of a model."""
        try:
            return self.find(text) is not None
        except ModelNotFound:
            return False

    @property
    def has_replicas(self) -> bool:
        """True if anything is loaded, or about to be."""
        return any(route.replicas for route in self._routes.values())

    def proto_of(self, route: RouteInfo) -> scheduler_pb2.ModelRoute:
        """Return a route of this cache as received."""
        return self._protos[parse_model_name(route.model.name).key]

    def replace_all(self, table: scheduler_pb2.RouteTable) -> None:
        """Put the table of a scheduler in the place of the old one."""
        self.table, self.heard, self.fence = table, True, table.fence
        self.take(table)

    def take(self, table: scheduler_pb2.RouteTable) -> None:
        """Take a table, also an old one. A row that cannot be taken is left out, named and counted."""
        protos: dict[str, scheduler_pb2.ModelRoute] = {}
        routes: dict[str, RouteInfo] = {}
        skipped: dict[str, str] = {}
        # Names that differ in case alone are one name here: the first that can be used has it.
        for route in sorted(table.routes, key=lambda route: (bool(route.model.error), route.model.name)):
            name = route.model.name
            try:
                key, info = parse_model_name(name).key, route_from_proto(route)
            except ModelNotFound:
                skipped[name] = BAD_NAME
            except Exception as error:  # noqa: BLE001  # of a newer scheduler or an odd file; the others are served
                skipped[name] = f"{type(error).__name__}: {error}"
            else:
                if key in routes:
                    skipped[name] = f"the same name as {routes[key].model.name}"
                else:
                    protos[key], routes[key] = route, info
        self._protos, self._routes = protos, routes
        self.removed_nodes = frozenset(table.removed_node_ids)
        self._skipped.note("models", skipped)
        if table.HasField("aliases"):  # else that scheduler has not read them yet
            self._take_aliases(table.aliases.aliases)
        self._changed()

    def _take_aliases(self, aliases: Iterable[scheduler_pb2.Alias]) -> None:
        skipped: dict[str, str] = {}
        self._aliases = {}
        for alias in aliases:
            try:
                self._aliases[parse_model_name(alias.name).key] = Alias(name=alias.name, target=alias.target)
            except ModelNotFound:
                skipped[alias.name] = BAD_NAME
        self._skipped.note("aliases", skipped)

    def merge(self, route: scheduler_pb2.ModelRoute) -> RouteInfo:
        """Merge one route that the scheduler gave outside the table; it is newer."""
        info, key = route_from_proto(route), parse_model_name(route.model.name).key
        self._routes[key], self._protos[key] = info, route
        self._changed()
        return info

    def _changed(self) -> None:
        for listener in tuple(self._listeners):
            listener()


async def watch_routes(cache: RouteCache, scheduler: SchedulerClient) -> None:
    """Keep the cache current until cancelled. A scheduler that is gone changes nothing.

    A table that cannot be taken at all is an error in the log, and the one before it stays.
    """
    async for table in scheduler.watch_routes(on_connection=cache.connected):
        try:
            cache.replace_all(table)
        except Exception as error:
            metrics.REFUSED_TABLES.inc()
            log.exception("routes.refused", version=table.version, text=str(error))

"""The routing table as gateways get it, and everybody who watches it."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from common.changes import Changes
from common.clock import Clock
from common.model_details import KeptDetails, SentDetails, drop_details, without_details
from protos import cluster_pb2, discovery_pb2, scheduler_pb2
from scheduler import metrics
from scheduler.converters import from_replica
from scheduler.core.effects import PublishRoutes
from scheduler.core.routing_table import ModelRoute


@dataclass(frozen=True, slots=True, kw_only=True)
class _KnownModel:
    """A model as the inventory had it last, with its details, and as routes carry it."""

    seen: cluster_pb2.Model
    full: cluster_pb2.Model
    brief: cluster_pb2.Model


class RouteBoard:
    """Holds the newest table. Single owner: the core's loop; watchers only read."""

    def __init__(self, clock: Clock, details: KeptDetails) -> None:
        """`details` keeps what the inventory carries only once."""
        self._clock = clock
        self._details = details
        self._models: dict[tuple[str, str], _KnownModel] = {}
        self._changes = Changes()
        self._inventory = discovery_pb2.Inventory()
        self._seen_at_s = 0.0
        self._promised_bytes: Mapping[tuple[str, str], int] = {}
        self._reserve_bytes: Mapping[tuple[str, str], int] = {}
        self.metrics_address = ""  # of this process's own page
        self.table: scheduler_pb2.RouteTable | None = None

    def see_inventory(self, inventory: discovery_pb2.Inventory) -> None:
        """Keep the models' descriptions, which the core does not carry. Those of a node that just left stay known."""
        self._inventory, self._seen_at_s = inventory, self._clock.now_s()
        shown: dict[tuple[str, str], cluster_pb2.Model] = {}  # of several nodes the first one whose file is usable
        for node in inventory.nodes:
            for model in node.models:
                other = shown.get((model.name, model.digest))
                if other is None or (other.error and not model.error):
                    shown[model.name, model.digest] = model
        for key, model in shown.items():
            if key not in self._models or self._models[key].seen != model:
                self._models[key] = self._known(model)

    def _known(self, model: cluster_pb2.Model) -> "_KnownModel":
        """Copies: a part of the inventory would keep all of it in memory."""
        seen, full = cluster_pb2.Model(), cluster_pb2.Model()
        seen.CopyFrom(model)
        full.CopyFrom(model)
        self._details.complete(full)
        return _KnownModel(seen=seen, full=full, brief=without_details(full) if full.description.details_id else full)

    def see_promises(
        self, promised_bytes: Mapping[tuple[str, str], int], reserve_bytes: Mapping[tuple[str, str], int]
    ) -> None:
        """What is promised and what is kept free, by node and device, to be shown."""
        self._promised_bytes, self._reserve_bytes = promised_bytes, reserve_bytes

    def inventory(self) -> discovery_pb2.Inventory:
        """The inventory that decisions are made on, with its age as of now and what is promised on each device."""
        shown = discovery_pb2.Inventory()
        shown.CopyFrom(self._inventory)
        shown.scheduler_metrics_address = self.metrics_address
        waited_ms = max(0, round((self._clock.now_s() - self._seen_at_s) * 1000))
        for node in shown.nodes:
            node.report_age_ms += waited_ms
            for model in node.models:
                drop_details(model)
            for device in node.devices:
                device.promised_bytes = self._promised_bytes.get((node.id, device.id), 0)
                device.reserve_bytes = self._reserve_bytes.get((node.id, device.id), 0)
        return shown

    def publish(self, effect: PublishRoutes) -> None:
        """A new table takes the place of the old one."""
        self.table = scheduler_pb2.RouteTable(
            version=effect.version, routes=[self._to_route(route) for route in effect.routes]
        )
        current = {(route.model.name, route.model.digest) for route in effect.routes}
        self._models = {key: model for key, model in self._models.items() if key in current}
        metrics.ROUTES_VERSION.set(effect.version)
        self._changes.notify()

    def route(self, model_name: str) -> scheduler_pb2.ModelRoute:
        """The newest route of a model."""
        routes = self.table.routes if self.table is not None else ()
        found = next((route for route in routes if route.model.name == model_name), None)
        assert found is not None, f"{model_name} was answered as ready without a route"
        return self._complete(found)

    async def watch(self) -> AsyncIterator[scheduler_pb2.RouteTable]:
        """The newest table now and after every change; a slow reader skips versions."""
        seen, sent = 0, SentDetails()
        while True:
            seen = await self._changes.beyond(seen)
            if self.table is not None:
                fresh = sent.must_send(route.model for route in self.table.routes)
                yield self._with_details(self.table, fresh) if fresh else self.table

    def _with_details(self, table: scheduler_pb2.RouteTable, fresh: set[str]) -> scheduler_pb2.RouteTable:
        routes = []
        for route in table.routes:
            name = route.model.description.details_id
            routes.append(self._complete(route) if name in fresh else route)
            fresh.discard(name)
        return scheduler_pb2.RouteTable(version=table.version, routes=routes)

    def _complete(self, route: scheduler_pb2.ModelRoute) -> scheduler_pb2.ModelRoute:
        complete = scheduler_pb2.ModelRoute()
        complete.CopyFrom(route)
        complete.model.CopyFrom(self._models[route.model.name, route.model.digest].full)
        return complete

    def _to_route(self, route: ModelRoute) -> scheduler_pb2.ModelRoute:
        model = self._models.get((route.model.name, route.model.digest))
        assert model is not None, "the core knows models from the same inventory"
        replicas = [
            from_replica(replica, expires_at_unix_ms=self._unix_ms(replica.expires_at_s)) for replica in route.replicas
        ]
        return scheduler_pb2.ModelRoute(model=model.brief, replicas=replicas)

    def _unix_ms(self, moment_s: float | None) -> int | None:
        if moment_s is None:
            return None
        return round((self._clock.wall_unix_s() + moment_s - self._clock.now_s()) * 1000)

"""The routing table as gateways get it, and everybody who watches it."""

from collections.abc import AsyncIterator, Mapping

from common.changes import Changes
from common.clock import Clock
from protos import cluster_pb2, discovery_pb2, scheduler_pb2
from scheduler import metrics
from scheduler.converters import from_replica
from scheduler.core.effects import PublishRoutes
from scheduler.core.routing_table import ModelRoute


class RouteBoard:
    """Holds the newest table. Single owner: the core's loop; watchers only read."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._models: dict[tuple[str, str], cluster_pb2.Model] = {}
        self._changes = Changes()
        self._inventory = discovery_pb2.Inventory()
        self._seen_at_s = 0.0
        self._promised_bytes: Mapping[tuple[str, str], int] = {}
        self._reserve_bytes: Mapping[tuple[str, str], int] = {}
        self.table: scheduler_pb2.RouteTable | None = None

    def see_inventory(self, inventory: discovery_pb2.Inventory) -> None:
        """Keep the models' descriptions, which the core does not carry. Those of a node that just left stay known."""
        self._inventory, self._seen_at_s = inventory, self._clock.now_s()
        for node in inventory.nodes:
            for model in node.models:
                self._models[model.name, model.digest] = model

    def see_promises(
        self, promised_bytes: Mapping[tuple[str, str], int], reserve_bytes: Mapping[tuple[str, str], int]
    ) -> None:
        """What is promised and what is kept free, by node and device, to be shown."""
        self._promised_bytes, self._reserve_bytes = promised_bytes, reserve_bytes

    def inventory(self) -> discovery_pb2.Inventory:
        """The inventory that decisions are made on, with its age as of now and what is promised on each device."""
        shown = discovery_pb2.Inventory()
        shown.CopyFrom(self._inventory)
        waited_ms = max(0, round((self._clock.now_s() - self._seen_at_s) * 1000))
        for node in shown.nodes:
            node.report_age_ms += waited_ms
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
        return found

    async def watch(self) -> AsyncIterator[scheduler_pb2.RouteTable]:
        """The newest table now and after every change; a slow reader skips versions."""
        seen = 0
        while True:
            seen = await self._changes.beyond(seen)
            if self.table is not None:
                yield self.table

    def _to_route(self, route: ModelRoute) -> scheduler_pb2.ModelRoute:
        model = self._models.get((route.model.name, route.model.digest))
        assert model is not None, "the core knows models from the same inventory"
        replicas = [
            from_replica(replica, expires_at_unix_ms=self._unix_ms(replica.expires_at_s)) for replica in route.replicas
        ]
        return scheduler_pb2.ModelRoute(model=model, replicas=replicas)

    def _unix_ms(self, moment_s: float | None) -> int | None:
        if moment_s is None:
            return None
        return round((self._clock.wall_unix_s() + moment_s - self._clock.now_s()) * 1000)

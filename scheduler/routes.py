"""The routing table as gateways get it, and the watches on it."""

import math
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass

from common.changes import Changes
from common.clock import MS_PER_S, Clock
from common.model_details import KeptDetails, SentDetails, drop_details, without_details
from common.model_names import is_model_name
from common.seen_inventory import SeenInventory
from common.telemetry.skipped_rows import BAD_NAME, SkippedRows
from protos import cluster_pb2, discovery_pb2, scheduler_pb2
from scheduler import metrics
from scheduler.converters import ALIASES, CRASH_ROWS, SPEED_SOURCES, from_replica
from scheduler.core.state.effects import PublishRoutes
from scheduler.core.values.faults import CrashRow
from scheduler.core.values.routing_table import ModelRoute
from scheduler.core.values.view import ModelFile, SpeedSource
from scheduler.gauges import DeviceBytes, DeviceSpeeds


@dataclass(frozen=True, slots=True, kw_only=True)
class _KnownModel:
    """A model as the inventory had it last, with its details, and as routes carry it."""

    seen: cluster_pb2.Model
    full: cluster_pb2.Model
    brief: cluster_pb2.Model


def _key(model: cluster_pb2.Model | ModelFile) -> tuple[str, str, str]:
    """Return the key of a model: the same weights may have one name with different metadata."""
    return model.name, model.digest, model.manifest_digest


class RouteBoard:
    """Holds the newest table. Single owner: the core's loop; watchers only read."""

    def __init__(self, clock: Clock, details: KeptDetails) -> None:
        """`details` keeps what the inventory carries only once."""
        self._clock = clock
        self._details = details
        self._models: dict[tuple[str, str, str], _KnownModel] = {}
        self._skipped = SkippedRows(metrics.SKIPPED_ROWS)
        self._changes = Changes()
        self._inventory: SeenInventory | None = None
        self._models_changes = 0
        self._heard_at_s: dict[str, tuple[cluster_pb2.Node, float]] = {}  # each node, and when it came
        # Sources of what the core knows: replicas left on drained nodes, crashes in a row, and by node and device the
        # speeds that rank, and promised and reserved bytes.
        self.read_drains: Callable[[], dict[str, int]] = dict
        self.read_crash_rows: Callable[[], Iterable[CrashRow]] = tuple
        self.read_speeds: Callable[[], DeviceSpeeds] = dict
        self.read_promises: Callable[[], tuple[DeviceBytes, DeviceBytes]] = lambda: ({}, {})
        self.metrics_address = ""  # of this process's own page
        self.table: scheduler_pb2.RouteTable | None = None

    def see_inventory(self, inventory: SeenInventory) -> None:
        """Keep the models' descriptions, which the core does not carry. Those of a node that just left stay known."""
        now_s, before = self._clock.now_s(), self._heard_at_s
        self._inventory, self._heard_at_s = inventory, {}
        for node in inventory.nodes:
            known = before.get(node.id)
            self._heard_at_s[node.id] = known if known is not None and known[0] is node else (node, now_s)
        if inventory.models_changes == self._models_changes:
            return
        self._models_changes = inventory.models_changes
        shown: dict[tuple[str, str, str], cluster_pb2.Model] = {}  # of several nodes the first one whose file is usable
        for node in inventory.nodes:
            bad = {model.name: BAD_NAME for model in node.models if not is_model_name(model.name)}
            self._skipped.note("models", bad, node=node.id)
            for model in node.models:
                if model.name in bad:
                    continue
                other = shown.get(_key(model))
                if other is None or (other.error and not model.error):
                    shown[_key(model)] = model
        for key, model in shown.items():
            if key not in self._models or self._models[key].seen != model:
                self._models[key] = self._known(model)

    def _known(self, model: cluster_pb2.Model) -> "_KnownModel":
        """Copy the fields of a model: a part of the inventory would keep all of it in memory."""
        seen, full = cluster_pb2.Model(), cluster_pb2.Model()
        seen.CopyFrom(model)
        full.CopyFrom(model)
        self._details.complete(full)
        return _KnownModel(seen=seen, full=full, brief=without_details(full) if full.description.details_id else full)

    def inventory(self) -> discovery_pb2.Inventory:
        """Return the inventory of the decisions, with its present age and the promised bytes of each device."""
        shown = discovery_pb2.Inventory(scheduler_metrics_address=self.metrics_address)
        if self._inventory is None:
            return shown
        shown.version, shown.uptime_ms = self._inventory.version, self._inventory.uptime_ms
        shown.metrics_address = self._inventory.metrics_address
        promised, reserved = self.read_promises()
        speeds = self.read_speeds()
        drains = self.read_drains()
        rows = [self.crash_row(row) for row in self.read_crash_rows()]
        for one in self._inventory.nodes:
            node = shown.nodes.add()
            node.CopyFrom(one)
            node.report_age_ms += max(0, round((self._clock.now_s() - self._heard_at_s[one.id][1]) * 1000))
            node.draining, node.draining_replicas = node.id in drains, drains.get(node.id, 0)
            node.crash_rows.extend(row for row in rows if row.node_id == node.id)
            for model in node.models:
                drop_details(model)
            for device in node.devices:
                device.promised_bytes = promised.get((node.id, device.id), 0)
                device.reserve_bytes = reserved.get((node.id, device.id), 0)
                speed, source = speeds.get((node.id, device.id), (0.0, SpeedSource.UNKNOWN))
                device.rank_bytes_s, device.rank_source = round(speed), SPEED_SOURCES.to_proto(source)
        return shown

    def crash_row(self, row: CrashRow) -> cluster_pb2.CrashRow:
        """Convert crashes in a row. Moments are whole seconds, so that an unchanged row stays equal."""
        until_s = row.excluded_until_s
        return CRASH_ROWS.to_proto(
            row,
            last_at_unix_ms=self._whole_unix_ms(row.last_s),
            retry_at_unix_ms=self._whole_unix_ms(row.retry_at_s),
            excluded_until_unix_ms=None if until_s is None else self._whole_unix_ms(until_s),
        )

    def publish(self, effect: PublishRoutes) -> None:
        """Replace the table by a new one."""
        self.table = scheduler_pb2.RouteTable(
            version=effect.version, routes=[self._to_route(route) for route in effect.routes], fence=effect.fence
        )
        if self._inventory is not None:
            self.table.removed_node_ids.extend(sorted(self._inventory.removed_node_ids))
        if effect.aliases is not None:
            self.table.aliases.SetInParent()
            self.table.aliases.aliases.extend(map(ALIASES.to_proto, effect.aliases))
        current = {_key(route.model) for route in effect.routes}
        self._models = {key: model for key, model in self._models.items() if key in current}
        metrics.ROUTES_VERSION.set(effect.version)
        self._changes.notify()

    def route(self, model_name: str) -> scheduler_pb2.ModelRoute:
        """Return the newest route of a model."""
        routes = self.table.routes if self.table is not None else ()
        found = next((route for route in routes if route.model.name == model_name), None)
        assert found is not None, f"{model_name} was answered as ready without a route"
        return self._complete(found)

    async def watch(self) -> AsyncIterator[scheduler_pb2.RouteTable]:
        """Yield the newest table now and after every change; a slow reader skips versions."""
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
        return scheduler_pb2.RouteTable(
            version=table.version,
            routes=routes,
            aliases=table.aliases if table.HasField("aliases") else None,
            removed_node_ids=table.removed_node_ids,
            fence=table.fence,
        )

    def _complete(self, route: scheduler_pb2.ModelRoute) -> scheduler_pb2.ModelRoute:
        complete = scheduler_pb2.ModelRoute()
        complete.CopyFrom(route)
        complete.model.CopyFrom(self._models[_key(route.model)].full)
        return complete

    def _to_route(self, route: ModelRoute) -> scheduler_pb2.ModelRoute:
        model = self._models.get(_key(route.model))
        assert model is not None, "the core knows models from the same inventory"
        replicas = [
            from_replica(
                replica,
                expires_at_unix_ms=self._unix_ms(replica.expires_at_s),
                stays=replica.expires_at_s == math.inf,
            )
            for replica in route.replicas
        ]
        return scheduler_pb2.ModelRoute(model=model.brief, replicas=replicas)

    def _unix_ms(self, moment_s: float | None) -> int | None:
        return None if moment_s is None or moment_s == math.inf else round(self._unix_s(moment_s) * MS_PER_S)

    def _whole_unix_ms(self, moment_s: float) -> int:
        return round(self._unix_s(moment_s)) * MS_PER_S

    def _unix_s(self, moment_s: float) -> float:
        return self._clock.wall_unix_s() + moment_s - self._clock.now_s()

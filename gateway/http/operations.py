"""Health, metrics, and Puna's own pages about nodes and placements."""

from dataclasses import dataclass

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from common.errors import ModelUnavailable
from gateway.core.routes import ReplicaInfo, ReplicaState, RouteInfo
from gateway.http.exchange import Exchange
from gateway.http.service import Service
from gateway.inventory import inventory_nodes
from gateway.ports import for_clients


@dataclass(frozen=True, slots=True)
class Operations:
    """For operators and orchestrators."""

    service: Service

    async def health(self, exchange: Exchange) -> None:
        """GET /healthz: the event loop turns."""
        await exchange.respond_json({"status": "ok"})

    async def ready(self, exchange: Exchange) -> None:
        """GET /readyz: requests are admitted."""
        if self.service.draining:
            await exchange.respond_json({"status": "draining"}, status=503)
        elif not self.service.inference.models.routes.heard:
            await exchange.respond_json({"status": "no_routes"}, status=503)
        else:
            await exchange.respond_json({"status": "ok"})

    async def metrics(self, exchange: Exchange) -> None:
        """GET /metrics: the Prometheus page."""
        await exchange.respond(200, generate_latest(), {"content-type": CONTENT_TYPE_LATEST})

    async def nodes(self, exchange: Exchange) -> None:
        """GET /puna/v1/nodes: the inventory as the scheduler sees it."""
        try:
            inventory = await self.service.scheduler.list_nodes()
        except ModelUnavailable as error:
            raise for_clients(error) from error
        await exchange.respond_json({"nodes": inventory_nodes(inventory)})

    async def placements(self, exchange: Exchange) -> None:
        """GET /puna/v1/placements: every replica in the routes."""
        inference = self.service.inference
        asked = exchange.query.get("model")
        routes = inference.models.routes.all() if asked is None else [inference.models.known_route(asked)]
        placements = [self._placement(route, replica) for route in routes for replica in route.replicas]
        await exchange.respond_json({"placements": placements})

    def _placement(self, route: RouteInfo, replica: ReplicaInfo) -> dict[str, object]:
        load = self.service.inference.dispatcher.pool.load_of(replica.key)
        state: ReplicaState = load.state if load else replica.state
        return {
            "id": replica.placement_id,
            "generation": replica.generation,
            "model": route.model.name,
            "digest": route.model.digest,
            "node": replica.node_id,
            "state": str(state),
            "fraction": replica.load_fraction if state is ReplicaState.LOADING else None,
            "reason": replica.reason or None,
            "layout": [
                {"device": device.device_id, "name": device.name, "layers": device.layer_count}
                for device in replica.devices
            ],
            "measured_bytes": {device.device_id: device.size_bytes for device in replica.devices},
            "host_bytes": replica.host_bytes,
            "context_length": replica.context_tokens,
            "slots_total": load.slots_total if load else replica.slots_total,
            "slots_busy": load.slots_busy if load else replica.slots_busy,
            "queued": load.queued if load else replica.queued,
            "reachable": load.reachable if load else False,
            "expires_at_unix_ms": replica.expires_at_unix_ms,
        }

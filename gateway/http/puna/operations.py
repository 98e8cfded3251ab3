"""Health, metrics, and Puna's own pages about nodes and placements."""

from dataclasses import dataclass

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from common.errors import ModelUnavailable
from gateway.core.keys.hidden_names import texts_shown
from gateway.http.endpoint.exchange import Exchange
from gateway.http.endpoint.service import Service
from gateway.keys.visits import may_use
from gateway.models.first_nodes import FirstNodes
from gateway.models.inventory import inventory_nodes
from gateway.models.scrape_targets import scrape_targets
from gateway.ports import for_clients


@dataclass(frozen=True, slots=True)
class Operations:
    """For operators and orchestrators."""

    service: Service
    first_nodes: FirstNodes

    async def health(self, exchange: Exchange) -> None:
        """GET /healthz: the event loop turns."""
        await exchange.respond_json({"status": "ok"})

    async def ready(self, exchange: Exchange) -> None:
        """GET /readyz: requests are admitted. What has to come before one can be answered is told beside that."""
        routes = self.service.inference.models.routes
        if self.service.draining:
            await exchange.respond_json({"status": "draining"}, status=503)
        elif not routes.heard:
            await exchange.respond_json({"status": "no_routes"}, status=503)
        elif not routes.has_replicas and (missing := await self.first_nodes.missing()):
            await exchange.respond_json({"status": "ok", "waits_for": missing})
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
        nodes = [{**node, "runners": _visible(node["runners"])} for node in inventory_nodes(inventory)]
        await exchange.respond_json({"nodes": texts_shown(nodes, self.service.inference.models.shown)})

    async def targets(self, exchange: Exchange) -> None:
        """GET /puna/v1/targets: every page to scrape, in the format of Prometheus' HTTP service discovery."""
        try:
            inventory = await self.service.scheduler.list_nodes()
        except ModelUnavailable as error:
            raise for_clients(error) from error
        dialled = exchange.headers.get("host", "")
        await exchange.respond_json(scrape_targets(inventory, self.service.addresses, dialled=dialled))


def _visible(runners: object) -> list[object]:
    """Those that serve models of the caller."""
    assert isinstance(runners, list)
    return [runner for runner in runners if may_use(runner["model"])]

"""Health, metrics, scrape targets, settings and nodes."""

from dataclasses import dataclass

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from common.errors import ModelUnavailable
from gateway.converters.inventory import inventory_nodes
from gateway.core.keys.hidden_names import texts_shown
from gateway.core.keys.keys import Scope
from gateway.http.endpoint.exchange import Exchange
from gateway.http.endpoint.route_errors import OF_THE_CLUSTER
from gateway.http.endpoint.router import Route
from gateway.http.endpoint.service import Service
from gateway.http.puna.gateway_state import GatewayState
from gateway.http.puna.operation_bodies import (
    ConfigAnswer,
    HealthAnswer,
    NodeList,
    Readiness,
    ScrapeTargets,
)
from gateway.keys.visits import may_use
from gateway.models.first_nodes import FirstNodes
from gateway.models.scrape_targets import scrape_targets
from gateway.ports import for_clients

# Clients of llama-server and vLLM, and benchmarks, look at the other two before they ask.
_HEALTH_PATHS = ("/healthz", "/health", "/v1/health")


def operation_routes(service: Service) -> list[Route]:
    """List the routes of health, metrics, settings and nodes."""
    operations = Operations(service, FirstNodes(service.scheduler))
    text = ("text/plain",)
    return [
        *(
            Route("GET", path, operations.health, "Alive", scope=None, response=HealthAnswer, quiet=True)
            for path in _HEALTH_PATHS
        ),
        Route(
            "GET",
            "/readyz",
            operations.ready,
            "Admitting requests",
            scope=None,
            response=Readiness,
            other_answers=((503, Readiness),),
            quiet=True,
        ),
        Route(
            "GET",
            "/metrics",
            operations.metrics,
            "Prometheus metrics",
            scope=Scope.METRICS,
            media_types=text,
            quiet=True,
        ),
        Route(
            "GET",
            "/puna/v1/targets",
            operations.targets,
            "Scrape targets for Prometheus",
            scope=Scope.METRICS,
            response=ScrapeTargets,
            errors=OF_THE_CLUSTER,
            quiet=True,
        ),
        Route(
            "GET",
            "/puna/v1/config",
            GatewayState(service).config,
            "The settings of this gateway as they are in effect, without secrets",
            scope=Scope.ADMIN_CLUSTER,
            response=ConfigAnswer,
            quiet=True,
        ),
        Route(
            "GET",
            "/puna/v1/nodes",
            operations.nodes,
            "Nodes and their devices",
            scope=Scope.MODELS_READ,
            response=NodeList,
            errors=OF_THE_CLUSTER,
        ),
    ]


@dataclass(frozen=True, slots=True)
class Operations:
    """For operators and orchestrators."""

    service: Service
    first_nodes: FirstNodes

    async def health(self, exchange: Exchange) -> None:
        """GET /healthz, /health: the event loop turns."""
        await exchange.respond_json({"status": "ok"})

    async def ready(self, exchange: Exchange) -> None:
        """GET /readyz: requests are admitted. `waits_for` names what is missing before one can be answered."""
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
        nodes = [
            {**node, **{name: _visible(node[name]) for name in ("runners", "crash_rows")}}
            for node in inventory_nodes(inventory)
        ]
        await exchange.respond_json({"nodes": texts_shown(nodes, self.service.inference.models.shown)})

    async def targets(self, exchange: Exchange) -> None:
        """GET /puna/v1/targets: every page to scrape, in the format of Prometheus' HTTP service discovery."""
        try:
            inventory = await self.service.scheduler.list_nodes()
        except ModelUnavailable as error:
            raise for_clients(error) from error
        dialled = exchange.headers.get("host", "")
        await exchange.respond_json(scrape_targets(inventory, self.service.addresses, dialled=dialled))


def _visible(rows: object) -> list[object]:
    """Return the rows about models of the caller."""
    assert isinstance(rows, list)
    return [row for row in rows if may_use(row["model"])]

"""Health, metrics, scrape targets, settings, queues, the caller's rights, and nodes."""

from dataclasses import asdict, dataclass
from functools import partial

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from common.effective_settings import EffectiveSetting
from common.errors import InvalidRequest
from common.trust.identity import own_identity
from gateway.converters.inventory import inventory_nodes
from gateway.core.keys.hidden_names import texts_shown
from gateway.core.keys.keys import ALL_SCOPES, Scope
from gateway.http.endpoint.exchange import Exchange
from gateway.http.endpoint.fields import check_names
from gateway.http.endpoint.route_errors import OF_NODES, OF_THE_CLUSTER
from gateway.http.endpoint.router import Route
from gateway.http.endpoint.service import Endpoints, Service
from gateway.http.puna.bodies import (
    ConfigAnswer,
    DrainedNode,
    HealthAnswer,
    NodeList,
    QueueList,
    Readiness,
    ScrapeTargets,
    WhoAmIAnswer,
)
from gateway.keys.visits import current_key, may_use
from gateway.models.first_nodes import FirstNodes
from gateway.models.scrape_targets import scrape_targets

NODE_LENGTH_MAX = 128
BUDGET_S_MAX = 86_400
# Clients of llama-server and vLLM, and benchmarks, look at the other two before they ask.
_HEALTH_PATHS = ("/healthz", "/health", "/v1/health")


def operation_routes(service: Service) -> list[Route]:
    """List the routes of health, metrics, settings, queues and nodes."""
    operations = Operations(service, FirstNodes(service.scheduler))
    look = partial(Route, "GET", quiet=True)
    steer = partial(Route, "POST", scope=Scope.ADMIN_CLUSTER, response=DrainedNode, errors=OF_NODES)
    settings = "The settings of this gateway as they are in effect, without secrets"
    return [
        *(look(path, operations.health, "Alive", scope=None, response=HealthAnswer) for path in _HEALTH_PATHS),
        look(
            "/readyz",
            operations.ready,
            "Admitting requests",
            scope=None,
            response=Readiness,
            other_answers=((503, Readiness),),
        ),
        look("/metrics", operations.metrics, "Prometheus metrics", scope=Scope.METRICS, media_types=("text/plain",)),
        look(
            "/puna/v1/targets",
            operations.targets,
            "Scrape targets for Prometheus",
            scope=Scope.METRICS,
            response=ScrapeTargets,
            errors=OF_THE_CLUSTER,
        ),
        look("/puna/v1/config", operations.config, settings, scope=Scope.ADMIN_CLUSTER, response=ConfigAnswer),
        look(
            "/puna/v1/queue",
            operations.queues,
            "Requests that wait at this gateway",
            scope=Scope.MODELS_READ,
            response=QueueList,
        ),
        look(
            "/puna/v1/whoami",
            operations.whoami,
            "Rights of the caller's key",
            scope=None,
            needs_key=True,
            response=WhoAmIAnswer,
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
        steer("/puna/v1/nodes/{node}/drain", operations.drain, "Take a node out of use"),
        steer("/puna/v1/nodes/{node}/undrain", operations.undrain, "Put a node into use again"),
        steer("/puna/v1/nodes/{node}/remove", operations.remove_node, "Refuse the certificates of a node"),
    ]


@dataclass(frozen=True, slots=True)
class Operations(Endpoints):
    """For operators and orchestrators."""

    first_nodes: FirstNodes

    async def health(self, exchange: Exchange) -> None:
        """GET /healthz, /health: the event loop turns."""
        await exchange.respond_json({"status": "ok"})

    async def ready(self, exchange: Exchange) -> None:
        """GET /readyz: requests are admitted. `waits_for` names what is missing before one can be answered."""
        routes = self.models.routes
        if self.service.draining:
            await exchange.respond_json({"status": "draining"}, status=503)
        elif not routes.heard and not routes.has_replicas:  # those of an earlier gateway serve, too
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
        inventory = await self.scheduler.list_nodes()
        nodes = [
            {**node, **{name: _visible(node[name]) for name in ("runners", "crash_rows")}}
            for node in inventory_nodes(inventory)
        ]
        await exchange.respond_json({"nodes": texts_shown(nodes, self.models.shown)})

    async def targets(self, exchange: Exchange) -> None:
        """GET /puna/v1/targets: every page to scrape, in the format of Prometheus' HTTP service discovery."""
        inventory = await self.scheduler.list_nodes()
        dialled = exchange.headers.get("host", "")
        secured = own_identity() is not None
        await exchange.respond_json(scrape_targets(inventory, self.service.addresses, dialled=dialled, secured=secured))

    async def drain(self, exchange: Exchange) -> None:
        """POST /puna/v1/nodes/{node}/drain[?budget_s=…]: nothing new there, what runs there moves or ends.

        Answered once it is written down.
        """
        node = exchange.path_value[:NODE_LENGTH_MAX]
        check_names(exchange.query, ("budget_s",), "parameter")
        budget_s = _budget_s(exchange.query.get("budget_s"))
        replicas = await self.scheduler.drain(node, budget_s=budget_s)
        await exchange.respond_json(
            {"node": node, "state": "draining" if replicas else "drained", "draining_replicas": replicas}
        )

    async def undrain(self, exchange: Exchange) -> None:
        """POST /puna/v1/nodes/{node}/undrain: in use again."""
        node = exchange.path_value[:NODE_LENGTH_MAX]
        await self.scheduler.undrain(node)
        await exchange.respond_json({"node": node, "state": "ready"})

    async def remove_node(self, exchange: Exchange) -> None:
        """POST /puna/v1/nodes/{node}/remove[?absent=true]: its certificates count no more, its replicas are lost.

        `absent`: also if it is not registered now. Answered once it is written down.
        """
        node = exchange.path_value[:NODE_LENGTH_MAX]
        check_names(exchange.query, ("absent",), "parameter")
        absent = exchange.query.get("absent", "false")
        if absent not in ("true", "false"):
            raise InvalidRequest("absent must be true or false", param="absent")
        replicas = await self.scheduler.remove_node(node, may_be_absent=absent == "true")
        await exchange.respond_json({"node": node, "state": "removed", "lost_replicas": replicas})

    async def config(self, exchange: Exchange) -> None:
        """GET /puna/v1/config: the settings in effect, without secrets."""
        rows = [_row(setting) for setting in self.service.settings]
        await exchange.respond_json({"process": "gateway", "version": self.service.version, "settings": rows})

    async def queues(self, exchange: Exchange) -> None:
        """GET /puna/v1/queue: for every model its waiting requests, their longest wait, and the rate of ends."""
        reports = self.service.inference.dispatcher.queue_reports()
        await exchange.respond_json({"models": [asdict(report) for report in reports if may_use(report.model)]})

    async def whoami(self, exchange: Exchange) -> None:
        """GET /puna/v1/whoami: the rights of the caller's key, so that a page offers nothing that would be refused."""
        key = current_key()
        await exchange.respond_json(
            {
                "keys": key is not None,
                "key": key.id if key is not None else None,
                "owner": key.owner if key is not None else None,
                "scopes": sorted(str(scope) for scope in (key.scopes if key is not None else ALL_SCOPES)),
                "models": list(key.models) if key is not None and key.models else None,
                "version": self.service.version,
            }
        )


def _visible(rows: object) -> list[object]:
    """Return the rows about models of the caller."""
    assert isinstance(rows, list)
    return [row for row in rows if may_use(row["model"])]


def _budget_s(written: str | None) -> float | None:
    if written is None:
        return None
    if not written.isdecimal() or int(written[:6]) > BUDGET_S_MAX:
        raise InvalidRequest(f"budget_s must be a whole number from 0 to {BUDGET_S_MAX}", param="budget_s")
    return float(written[:6])


def _row(setting: EffectiveSetting) -> dict[str, str]:
    return {
        "name": setting.name,
        "value": setting.value,
        "source": str(setting.source),
        "variable": setting.variable,
        "effect": setting.text,
    }

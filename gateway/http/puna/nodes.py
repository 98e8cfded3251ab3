"""Nodes out of use and back: /puna/v1/nodes/{node}/drain and undrain."""

from dataclasses import dataclass

from common.errors import InvalidRequest
from gateway.core.keys.keys import Scope
from gateway.http.endpoint.exchange import Exchange
from gateway.http.endpoint.fields import check_names
from gateway.http.endpoint.route_errors import OF_NODES
from gateway.http.endpoint.router import Route
from gateway.http.endpoint.service import Service
from gateway.http.puna.operation_bodies import DrainedNode
from gateway.http.puna.placements import scheduler_answer

NODE_LENGTH_MAX = 128
BUDGET_S_MAX = 86_400


def node_routes(service: Service) -> list[Route]:
    """Build the routes that take nodes out of use and back."""
    nodes = Nodes(service)
    return [
        Route(
            "POST",
            f"/puna/v1/nodes/{{node}}/{name}",
            endpoint,
            summary,
            scope=Scope.ADMIN_CLUSTER,
            response=DrainedNode,
            errors=OF_NODES,
        )
        for name, endpoint, summary in (
            ("drain", nodes.drain, "Take a node out of use"),
            ("undrain", nodes.undrain, "Put a node into use again"),
        )
    ]


@dataclass(frozen=True, slots=True)
class Nodes:
    """For operators. The list of nodes is one of the operations."""

    service: Service

    async def drain(self, exchange: Exchange) -> None:
        """POST /puna/v1/nodes/{node}/drain[?budget_s=…]: nothing new there, what runs there moves or ends.

        Answered once it is written down.
        """
        node = exchange.path_value[:NODE_LENGTH_MAX]
        check_names(exchange.query, ("budget_s",), "parameter")
        budget_s = _budget_s(exchange.query.get("budget_s"))
        replicas = await scheduler_answer(self.service.scheduler.drain(node, budget_s=budget_s))
        await exchange.respond_json(
            {"node": node, "state": "draining" if replicas else "drained", "draining_replicas": replicas}
        )

    async def undrain(self, exchange: Exchange) -> None:
        """POST /puna/v1/nodes/{node}/undrain: in use again."""
        node = exchange.path_value[:NODE_LENGTH_MAX]
        await scheduler_answer(self.service.scheduler.undrain(node))
        await exchange.respond_json({"node": node, "state": "ready"})


def _budget_s(written: str | None) -> float | None:
    if written is None:
        return None
    if not written.isdecimal() or int(written[:6]) > BUDGET_S_MAX:
        raise InvalidRequest(f"budget_s must be a whole number from 0 to {BUDGET_S_MAX}", param="budget_s")
    return float(written[:6])

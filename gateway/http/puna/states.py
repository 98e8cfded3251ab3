"""Saved states of conversations: /puna/v1/states."""

from dataclasses import dataclass

from pydantic import Field

from common.errors import InvalidRequest, PunaError
from common.telemetry.logs import get_logger
from gateway.core.keys.keys import Scope
from gateway.http.endpoint.exchange import Exchange
from gateway.http.endpoint.fields import OwnBody, validated
from gateway.http.endpoint.response_model import ResponseModel
from gateway.http.endpoint.route_errors import OF_NODES
from gateway.http.endpoint.router import Route
from gateway.http.endpoint.service import Endpoints, Service

log = get_logger()


class ForgetBody(OwnBody):
    """POST /puna/v1/states/forget."""

    tenant: str = Field(default="", max_length=128, description="Empty: what was saved for callers without a key")


class ForgottenNode(ResponseModel):
    """Result of one node."""

    node: str
    states: int
    bytes: int
    error: str = Field(description="Empty: everything was dropped")


class ForgottenStates(ResponseModel):
    """Result of every node."""

    nodes: list[ForgottenNode]


def state_routes(service: Service) -> list[Route]:
    """Build the route of saved states."""
    return [
        Route(
            "POST",
            "/puna/v1/states/forget",
            States(service).forget,
            "Drop the saved conversations of a tenant on every node",
            scope=Scope.ADMIN_CLUSTER,
            body=ForgetBody,
            response=ForgottenStates,
            errors=OF_NODES,
        )
    ]


@dataclass(frozen=True, slots=True)
class States(Endpoints):
    """For operators."""

    async def forget(self, exchange: Exchange) -> None:
        """POST /puna/v1/states/forget: one entry for each node; a node that failed has an error, and keeps them."""
        body = validated(ForgetBody, await exchange.json())
        exchange.record.changes["object"] = body.tenant
        salt = self._salt(body.tenant)
        log.info("states.forget_asked", tenant=body.tenant)
        inventory = await self.scheduler.list_nodes()
        nodes = []
        for node in inventory.nodes:
            states, size, failure = 0, 0, ""
            try:
                dropped = await self.service.hosts.forget_states(node.address, salt, node_id=node.id)
                states, size = dropped.states, dropped.bytes
            except PunaError as error:
                failure = error.message
            nodes.append({"node": node.id, "states": states, "bytes": size, "error": failure})
        await exchange.respond_json({"nodes": nodes})

    def _salt(self, tenant: str) -> str:
        if not tenant:
            return ""
        salt = self.service.salt_of(tenant)
        if not salt:
            raise InvalidRequest("all tenants share prompts here (no keys, or PUNA_SHARED_CACHE)", param="tenant")
        return salt

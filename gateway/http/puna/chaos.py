"""Faults for exercises: /puna/v1/chaos."""

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from common.clock import MS_PER_S
from common.closing import closing
from common.errors import InvalidRequest, NodeNotFound, PermissionDenied
from common.telemetry.logs import get_logger
from gateway.core.keys.keys import Scope
from gateway.http.endpoint.exchange import Exchange
from gateway.http.endpoint.fields import Between, OwnBody, validated
from gateway.http.endpoint.route_errors import OF_NODES, OF_STORES
from gateway.http.endpoint.router import Route
from gateway.http.endpoint.service import Endpoints, Service
from gateway.http.endpoint.streaming import stream_ndjson
from gateway.http.puna.operations import NODE_LENGTH_MAX
from gateway.keys.visits import current_key
from protos import host_pb2

log = get_logger()

DURATION_S_MAX = 3600
_NDJSON = "application/x-ndjson"


class FaultName(StrEnum):
    """Kinds of faults."""

    KILL = "kill"
    STOP = "stop"
    BLOCK = "block"
    DISK = "disk"
    MEMORY = "memory"
    CUT = "cut"
    SLOW = "slow"
    CLOCK = "clock"


class ChaosBody(OwnBody):
    """POST /puna/v1/chaos. Without a node nothing is done but the checks: for faults that the caller makes itself."""

    fault: FaultName = Field(strict=False)
    node: str = Field(default="", max_length=NODE_LENGTH_MAX)
    target: str = Field(
        min_length=1,
        max_length=256,
        description="A placement, `models` or `home`, a device, a service, the other end of a link",
    )
    duration_s: Annotated[float, Between(0.1, DURATION_S_MAX)] = 30.0
    leave_bytes: Annotated[int, Between(0, 2**62, whole=True)] = Field(default=0, description="Of disk and memory")


def chaos_routes(service: Service) -> list[Route]:
    """Build the route of faults."""
    return [
        Route(
            "POST",
            "/puna/v1/chaos",
            Chaos(service).inject,
            "Make a fault for as long as the request lasts",
            scope=Scope.ADMIN_CLUSTER,
            body=ChaosBody,
            media_types=(_NDJSON,),
            errors=OF_NODES | OF_STORES,
        )
    ]


@dataclass(frozen=True, slots=True)
class Chaos(Endpoints):
    """For operators' exercises."""

    async def inject(self, exchange: Exchange) -> None:
        """POST /puna/v1/chaos: one line when the fault is proven, one when it has ended; leaving ends it."""
        body = validated(ChaosBody, await exchange.json())
        if self.service.is_production:
            raise PermissionDenied("this cluster is marked as production (PUNA_PRODUCTION) and takes no faults")
        if current_key() is None:
            raise PermissionDenied("faults need a key with the scope admin:cluster; this gateway asks for no keys")
        if body.node and body.fault in (FaultName.CUT, FaultName.SLOW, FaultName.CLOCK):
            raise InvalidRequest("links and clocks are broken by `puna chaos` on their own machine", param="node")
        exchange.record.changes = {"object": body.target, "fault": body.fault, "to": body.node}
        log.warning("fault.asked", fault=body.fault, node=body.node, target=body.target, duration_s=body.duration_s)
        async with self.service.work_feed(self._steps(body), exchange.record) as feed:
            await stream_ndjson(exchange, feed, _lines)

    async def _steps(self, body: ChaosBody) -> AsyncIterator[dict[str, str]]:
        if not body.node:
            yield {"status": "allowed"}
            return
        address = await self._address_of(body.node)
        request = host_pb2.InjectFaultRequest(
            kind=host_pb2.FaultKind.Value(f"FAULT_KIND_{body.fault.upper()}"),
            target=body.target,
            leave_bytes=body.leave_bytes,
            duration_ms=round(body.duration_s * MS_PER_S),
        )
        async with closing(self.service.hosts.inject_fault(address, request, node_id=body.node)) as events:
            async for event in events:
                yield {"status": "injected", "text": event.text}
        yield {"status": "ended"}

    async def _address_of(self, node_id: str) -> str:
        inventory = await self.scheduler.list_nodes()
        for node in inventory.nodes:
            if node.id == node_id:
                return node.address
        raise NodeNotFound(f"there is no node {node_id!r}")


def _lines(step: dict[str, str]) -> Iterable[dict[str, str]]:
    yield step

"""puna.v1.Discovery over gRPC.

A watcher gets the whole inventory first, then only changes if it asked for them. In a cluster of a hundred idle hosts
nearly everything stays as it is, and most of it is models. A node that has not reported since the message before is
left out, and so are the models of one whose models are the same.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from grpc import aio

from common.clock import Clock
from common.errors import InvalidRequest
from common.model_details import SentDetails
from common.telemetry.logs import get_logger
from common.telemetry.skipped_rows import SkippedRows
from common.trust.callers import check_node, facts_of
from common.trust.certificates import Facts
from common.trust.revocations import Revocations
from discovery import metrics
from discovery.converters import (
    Models,
    believed_start_ms,
    leave_out_long_texts,
    models_of,
    take_out_bad_rows,
    to_node,
    to_report,
)
from discovery.core.membership import Member, Membership
from discovery.registry import NodeRegistry
from protos import discovery_pb2, discovery_pb2_grpc

log = get_logger()

REPORT_INTERVAL_MS = 1000
# A burst of reports (many hosts, one instant) becomes one inventory.
INVENTORY_INTERVAL_S_MIN = 0.02
# Figures that only moved a little are sent so often. With the time between two reports they stay below the two seconds
# after which the scheduler trusts them less.
FIGURES_INTERVAL_S = 0.5
# A watcher of changes gets a message so often: silence means that this process hangs.
HEARTBEAT_S = 1.0


class Sending:
    """State of one watcher's stream."""

    def __init__(self, *, changes_only: bool, started_at_s: float) -> None:
        """`started_at_s`: when this discovery process began."""
        self._changes_only = changes_only
        self._started_at_s = started_at_s
        self._details = SentDetails()
        self._nodes: dict[str, Member] = {}  # as they were sent last
        self._models: dict[str, Models] = {}

    def next(self, membership: Membership, now_s: float) -> discovery_pb2.Inventory:
        """Return the next message, with ages computed now."""
        is_partial = self._changes_only and bool(self._nodes)
        models = {node_id: models_of(node) for node_id, node in membership.nodes.items()}
        fresh: set[str] = set()
        if not is_partial or self._has_other_models(models):
            lists = (models[node_id] for node_id in sorted(models))
            fresh = self._details.must_send(model for one in lists for model in one.brief.models)
        sent = sorted(membership.nodes)
        if is_partial:
            sent = [node_id for node_id in sent if self._nodes.get(node_id) is not membership.nodes[node_id]]
        inventory = discovery_pb2.Inventory(
            version=membership.version,
            uptime_ms=round((now_s - self._started_at_s) * 1000),
            is_partial=is_partial,
            gone_node_ids=sorted(self._nodes.keys() - membership.nodes.keys()) if is_partial else (),
        )
        for node_id in sent:
            is_known = is_partial and self._models.get(node_id) is models[node_id]
            node = membership.nodes[node_id]
            inventory.nodes.append(to_node(node, models[node_id], None if is_known else fresh, now_s=now_s))
        self._nodes, self._models = dict(membership.nodes), models
        return inventory

    def _has_other_models(self, models: Mapping[str, Models]) -> bool:
        return models.keys() != self._models.keys() or any(
            self._models[node_id] is not one for node_id, one in models.items()
        )


class DiscoveryServicer(discovery_pb2_grpc.DiscoveryServicer):
    """Registrations in, inventories out."""

    def __init__(self, registry: NodeRegistry, clock: Clock, revocations: Revocations) -> None:
        self._registry = registry
        self._revocations = revocations
        self._shown: dict[str, Facts] = {}  # by node: the certificate with which it registered last
        self._clock = clock
        self._skipped = SkippedRows(metrics.SKIPPED_ROWS)

    async def Register(
        self,
        request_iterator: AsyncIterator[discovery_pb2.HostReport],
        context: aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[discovery_pb2.RegisterAck]:
        """Keep a node in the inventory for as long as the stream is open."""
        stream = self._registry.new_stream()
        node_id, sent = "", -1
        try:
            async for message in request_iterator:
                if node_id and message.node_id != node_id:
                    raise InvalidRequest("node_id must not change within a stream", param="node_id")
                if not node_id:
                    check_node(context, message.node_id)
                self._take(message, stream)
                if not node_id:
                    node_id = message.node_id
                    self._warn_of_clock(message)
                    if (facts := facts_of(context)) is not None:
                        self._shown[node_id] = facts
                if sent != self._revocations.changes.version:
                    sent = self._revocations.changes.version
                    yield discovery_pb2.RegisterAck(
                        report_interval_ms=REPORT_INTERVAL_MS,
                        revocations=[
                            discovery_pb2.Revocation(node_id=removed, issued_before_unix_ms=before_ms)
                            for removed, before_ms in self._revocations.entries.items()
                        ],
                    )
        finally:
            if node_id:
                self._registry.disconnect(node_id, stream)

    async def Revoke(
        self, request: discovery_pb2.RevokeRequest, context: aio.ServicerContext[Any, Any]
    ) -> discovery_pb2.RevokeResponse:
        """Refuse certificates of nodes from now on."""
        before = self._revocations.changes.version
        self._revocations.merge(request.revocations)
        if self._revocations.changes.version != before:
            self._registry.remove(
                [node_id for node_id, facts in self._shown.items() if self._revocations.refuses(facts)]
            )
        return discovery_pb2.RevokeResponse()

    async def WatchInventory(
        self,
        request: discovery_pb2.WatchInventoryRequest,
        context: aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[discovery_pb2.Inventory]:
        """Yield the newest inventory on connect and after changes."""
        registry = self._registry
        sending = Sending(changes_only=request.changes_only, started_at_s=registry.started_at_s)
        metrics.WATCHERS.inc()
        try:
            while True:
                seen, heard = registry.changes.version, registry.news.version
                inventory = sending.next(registry.membership, self._clock.now_s())
                inventory.metrics_address = registry.metrics_address
                inventory.removed_node_ids.extend(self._removed())
                yield inventory
                await asyncio.sleep(INVENTORY_INTERVAL_S_MIN)
                await self._next(seen, heard, within_s=HEARTBEAT_S if request.changes_only else None)
        finally:
            metrics.WATCHERS.dec()

    def _removed(self) -> list[str]:
        """List the removed nodes that have not come back since."""
        shown = self._shown
        return [one for one in self._revocations.entries if one not in shown or self._revocations.refuses(shown[one])]

    async def _next(self, seen: int, heard: int, *, within_s: float | None) -> None:
        """Wait for news; what is none may wait until other figures have been read, too."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._next_change(seen, heard)

    async def _next_change(self, seen: int, heard: int) -> None:
        try:
            async with asyncio.timeout(FIGURES_INTERVAL_S - INVENTORY_INTERVAL_S_MIN):
                await self._registry.news.beyond(heard)
        except TimeoutError:
            await self._registry.changes.beyond(seen)

    def _take(self, message: discovery_pb2.HostReport, stream: int) -> None:
        result = "refused"
        try:
            skipped = take_out_bad_rows(message)
            if message.HasField("models"):
                nodes = self._registry.membership.nodes.values()
                leave_out_long_texts(message, [models_of(one) for one in nodes if one.node_id != message.node_id])
            self._registry.report(to_report(message, stream=stream, wall_unix_s=self._clock.wall_unix_s()))
            result = "accepted"
            for section, rows in skipped.items():
                self._skipped.note(section, rows, node=message.node_id)
        finally:
            metrics.REPORTS.labels(result=result).inc()

    def _warn_of_clock(self, message: discovery_pb2.HostReport) -> None:
        claimed_ms = message.started_at_unix_ms
        if believed_start_ms(claimed_ms, wall_unix_s=self._clock.wall_unix_s()) != claimed_ms:
            log.warning("node.starts_in_future", node=message.node_id, started_at_unix_ms=claimed_ms)

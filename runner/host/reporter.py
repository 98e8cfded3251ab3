"""Keeps the node registered at discovery: one stream, everything first, then what changed, at least once a second."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from common.changes import Changes
from common.errors import PlacementMismatch, PunaError
from common.grpc.client import call_metadata, open_channel
from common.grpc.errors import received
from common.telemetry.logs import get_logger
from protos import discovery_pb2, discovery_pb2_grpc

log = get_logger()

REPORT_INTERVAL_S = 1.0
# Load progress may change many times a second; others need to see it, not to drown in it.
REPORT_INTERVAL_S_MIN = 0.05
RECONNECT_S_MIN = 0.1
RECONNECT_S_MAX = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who reports."""

    node_id: str
    incarnation: str
    started_at_unix_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sections:
    """What a host has to say. A part that is the same object as before is not looked at again."""

    facts: discovery_pb2.HostFacts
    devices: discovery_pb2.DeviceList
    models: discovery_pb2.ModelList
    runners: discovery_pb2.RunnerList


class Reporter:
    """`snapshot` reads the four sections as they are now; `changes` tells when to look."""

    def __init__(self, address: str, identity: Identity, snapshot: Callable[[], Sections], changes: Changes) -> None:
        self._address = address
        self._identity = identity
        self._snapshot = snapshot
        self._changes = changes
        self._interval_s = REPORT_INTERVAL_S
        self.is_registered = False

    async def run(self) -> None:
        """Register, and again whenever the stream breaks; runs for ever unless a newer host has replaced this one.

        Raises:
            PlacementMismatch: another host process speaks for this node.
        """
        pause_s, told_of_loss = RECONNECT_S_MIN, False
        async with open_channel(self._address) as channel:
            stub = discovery_pb2_grpc.DiscoveryStub(channel)
            while True:
                call = stub.Register(self._reports(), metadata=call_metadata())
                try:
                    async for ack in received(call):
                        told_of_loss = False
                        pause_s = RECONNECT_S_MIN
                        self._interval_s = max(REPORT_INTERVAL_S_MIN, ack.report_interval_ms / 1000)
                        self.is_registered = True
                        log.info("discovery.registered", address=self._address)
                except PlacementMismatch:
                    raise
                except PunaError as error:
                    if not told_of_loss:  # once per outage, not once per attempt
                        log.warning("discovery.lost", address=self._address, text=error.message)
                    told_of_loss = True
                finally:
                    self.is_registered = False
                    call.cancel()
                await asyncio.sleep(random.uniform(0, pause_s))
                pause_s = min(2 * pause_s, RECONNECT_S_MAX)

    async def _reports(self) -> AsyncIterator[discovery_pb2.HostReport]:
        sent: Sections | None = None
        while True:
            seen = self._changes.version
            current = self._snapshot()
            yield self._difference(sent, current)
            sent = current
            await asyncio.sleep(REPORT_INTERVAL_S_MIN)
            try:
                async with asyncio.timeout(self._interval_s - REPORT_INTERVAL_S_MIN):
                    await self._changes.beyond(seen)
            except TimeoutError:
                pass

    def _difference(self, sent: Sections | None, current: Sections) -> discovery_pb2.HostReport:
        """Ids and the sections that differ from what was sent on this stream; an empty list is a section, too."""
        report = discovery_pb2.HostReport(
            node_id=self._identity.node_id,
            incarnation=self._identity.incarnation,
            started_at_unix_ms=self._identity.started_at_unix_ms,
        )
        if sent is None or sent.facts != current.facts:
            report.facts.CopyFrom(current.facts)
        if sent is None or sent.devices != current.devices:
            report.devices.CopyFrom(current.devices)
        # By identity first: descriptions of many models are long, and the list is made anew only when it changed.
        if sent is None or (sent.models is not current.models and sent.models != current.models):
            report.models.CopyFrom(current.models)
        if sent is None or sent.runners != current.runners:
            report.runners.CopyFrom(current.runners)
        return report

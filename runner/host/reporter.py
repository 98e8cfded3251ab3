"""Registration of the node at every discovery: one stream each, everything first, then changes, at least every 1 s."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from typing import NamedTuple

from common.changes import Changes
from common.errors import PlacementMismatch, PunaError
from common.grpc.addresses import RESOLVE_S, resolve
from common.grpc.client import call_metadata, open_channel
from common.grpc.errors import received
from common.grpc.watch import watch
from common.telemetry.logs import get_logger
from common.trust.revocations import Revocations
from protos import discovery_pb2, discovery_pb2_grpc
from runner.host import metrics

log = get_logger()

REPORT_INTERVAL_S = 1.0
# Load progress may change many times a second; others need to see it, not to drown in it.
REPORT_INTERVAL_S_MIN = 0.05


class Sections(NamedTuple):
    """Content of a report. A part that is the same object as before is not compared again."""

    facts: discovery_pb2.HostFacts
    devices: discovery_pb2.DeviceList
    models: discovery_pb2.ModelList
    runners: discovery_pb2.RunnerList


class Registrations:
    """Registration at each discovery behind the setting. Owned by its `run` task.

    `identity` is a report without sections, `snapshot` reads the four sections as they are now, `changes` wakes the
    reports, and `revocations` takes the removed nodes that discoveries name.
    """

    def __init__(
        self,
        addresses: str,
        identity: discovery_pb2.HostReport,
        snapshot: Callable[[], Sections],
        changes: Changes,
        revocations: Revocations,
    ) -> None:
        self._addresses = addresses
        self._identity = identity
        self._snapshot = snapshot
        self._changes = changes
        self._revocations = revocations
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by address
        self._intervals_s: dict[str, float] = {}  # as each discovery asks for
        self._registered: set[str] = set()

    async def run(self) -> None:
        """Register and stay registered; runs for ever unless a newer host has replaced this one.

        Raises:
            PlacementMismatch: another host process speaks for this node.
        """
        metrics.CONNECTED.set_function(lambda: len(self._registered))
        try:
            while True:
                await self._turn_to(await resolve(self._addresses))
                ended, _ = await asyncio.wait(
                    self._tasks.values(), timeout=RESOLVE_S, return_when=asyncio.FIRST_COMPLETED
                )
                for task in ended:
                    task.result()
        finally:
            await self._turn_to([])

    async def _turn_to(self, addresses: list[str]) -> None:
        gone = [self._tasks.pop(address) for address in list(self._tasks) if address not in addresses]
        for task in gone:
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        for address in addresses:
            if address not in self._tasks:
                self._tasks[address] = asyncio.create_task(self._register(address), name=f"report {address}")

    async def _register(self, address: str) -> None:
        """Register at one discovery, and again whenever the stream breaks."""

        def note(is_registered: bool) -> None:
            (self._registered.add if is_registered else self._registered.discard)(address)
            if is_registered:
                log.info("discovery.registered", address=address)

        def lose(error: PunaError | None, failures: int) -> None:
            if isinstance(error, PlacementMismatch):
                raise error
            if error is not None and failures == 1:  # once per outage, not once per attempt
                log.warning("discovery.lost", address=address, text=error.message)

        async with open_channel(address, "discovery") as channel:
            stub = discovery_pb2_grpc.DiscoveryStub(channel)
            streams = watch(
                lambda: received(stub.Register(self._reports(address), metadata=call_metadata())),
                on_lost=lose,
                on_connection=note,
            )
            async with aclosing(streams) as acks:
                async for ack in acks:
                    self._intervals_s[address] = max(REPORT_INTERVAL_S_MIN, ack.report_interval_ms / 1000)
                    self._revocations.merge(ack.revocations)

    async def _reports(self, address: str) -> AsyncIterator[discovery_pb2.HostReport]:
        sent: Sections | None = None
        while True:
            seen = self._changes.version
            current = self._snapshot()
            yield self._difference(sent, current)
            sent = current
            await asyncio.sleep(REPORT_INTERVAL_S_MIN)
            interval_s = self._intervals_s.get(address, REPORT_INTERVAL_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(interval_s - REPORT_INTERVAL_S_MIN):
                    await self._changes.beyond(seen)

    def _difference(self, sent: Sections | None, current: Sections) -> discovery_pb2.HostReport:
        """Ids and the sections that differ from what was sent on this stream; an empty list is a section, too."""
        report = discovery_pb2.HostReport()
        report.CopyFrom(self._identity)
        for name, now in current._asdict().items():
            before = getattr(sent, name, None)
            # By identity first: descriptions of many models are long, and the list is made anew only when it changed.
            if before is not now and before != now:
                getattr(report, name).CopyFrom(now)
        return report

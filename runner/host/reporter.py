"""Registration of the node at every discovery: one stream each, everything first, then changes, at least every 1 s."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from common.changes import Changes
from common.errors import PlacementMismatch, PunaError
from common.grpc.addresses import RESOLVE_S, resolve
from common.grpc.client import call_metadata, open_channel
from common.grpc.errors import received
from common.grpc.watch import watch
from common.telemetry.logs import get_logger
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


class Reporter:
    """Registration at one discovery.

    `identity` is a report without sections, `snapshot` reads the four sections as they are now, and `changes` wakes the
    reporter.
    """

    def __init__(
        self, address: str, identity: discovery_pb2.HostReport, snapshot: Callable[[], Sections], changes: Changes
    ) -> None:
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
        async with open_channel(self._address) as channel:
            stub = discovery_pb2_grpc.DiscoveryStub(channel)
            async for ack in watch(
                lambda: received(stub.Register(self._reports(), metadata=call_metadata())),
                on_lost=self._lose,
                on_connection=self._note_connection,
            ):
                self._interval_s = max(REPORT_INTERVAL_S_MIN, ack.report_interval_ms / 1000)
                log.info("discovery.registered", address=self._address)

    def _note_connection(self, is_registered: bool) -> None:
        self.is_registered = is_registered

    def _lose(self, error: PunaError | None, failures: int) -> None:
        if isinstance(error, PlacementMismatch):
            raise error
        if error is not None and failures == 1:  # once per outage, not once per attempt
            log.warning("discovery.lost", address=self._address, text=error.message)

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
        report = discovery_pb2.HostReport()
        report.CopyFrom(self._identity)
        for name, now in current._asdict().items():
            before = getattr(sent, name, None)
            # By identity first: descriptions of many models are long, and the list is made anew only when it changed.
            if before is not now and before != now:
                getattr(report, name).CopyFrom(now)
        return report


class Registrations:
    """One reporter for each address behind the setting. Owned by its `run` task."""

    def __init__(
        self, addresses: str, identity: discovery_pb2.HostReport, snapshot: Callable[[], Sections], changes: Changes
    ) -> None:
        self._addresses = addresses
        self._identity = identity
        self._snapshot = snapshot
        self._changes = changes
        self._running: dict[str, tuple[Reporter, asyncio.Task[None]]] = {}  # by address

    async def run(self) -> None:
        """Register and stay registered; runs for ever unless a newer host has replaced this one.

        Raises:
            PlacementMismatch: another host process speaks for this node.
        """
        metrics.CONNECTED.set_function(lambda: sum(reporter.is_registered for reporter, _ in self._running.values()))
        try:
            while True:
                await self._turn_to(await resolve(self._addresses))
                tasks = [task for _, task in self._running.values()]
                ended, _ = await asyncio.wait(tasks, timeout=RESOLVE_S, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    task.result()
        finally:
            await self._turn_to([])

    async def _turn_to(self, addresses: list[str]) -> None:
        gone = [self._running.pop(address)[1] for address in list(self._running) if address not in addresses]
        for task in gone:
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        for address in addresses:
            if address not in self._running:
                reporter = Reporter(address, self._identity, self._snapshot, self._changes)
                self._running[address] = reporter, asyncio.create_task(reporter.run(), name=f"report {address}")

"""Calls of a host to one of its runners: status, signs of life and their absence, and its identity at an adoption."""

import asyncio
import contextlib
from collections.abc import Callable

from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.clock import Clock
from common.errors import PunaError
from common.grpc.client import open_channel
from common.grpc.errors import domain_errors, received
from common.grpc.ranges import find_out_of_range
from common.telemetry.logs import get_logger
from common.telemetry.skipped_rows import SkippedRows
from protos import cluster_pb2, runner_pb2, runner_pb2_grpc
from runner.host import metrics
from runner.host.processes.process import ProcessHandle

log = get_logger()
_skipped = SkippedRows(metrics.SKIPPED_ROWS)

HANDSHAKE_TIMEOUT_S = 5.0
PING_INTERVAL_S = 1.0
PING_TIMEOUT_S = 1.0
RECONNECT_S = 0.1
SILENCE_LOOK_INTERVAL_S = 0.5
SILENT_AFTER_S = 2.5  # two missed pings
# A hung runner is gone within 10 s: counting begins with the look after its last answer, and the kill takes a moment.
HUNG_AFTER_S = 9.0


class Silence:
    """Duration of one runner's silence. Slow runners answer pings and are left alone."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heard = False  # since the last look
        self._silence_s = 0.0

    def hear(self) -> None:
        """Note that the runner said something."""
        self._heard = True

    @property
    def is_long(self) -> bool:
        """Nothing more should be asked of it."""
        return self._silence_s > SILENT_AFTER_S

    async def grows_too_long(self, process: ProcessHandle, *, placement_id: str, changed: Callable[[], None]) -> bool:
        """Listen until the process has gone, or has answered nothing for HUNG_AFTER_S: then True."""
        was_long, looked_at_s = False, self._clock.now_s()
        while not process.exited.is_set():
            await asyncio.sleep(SILENCE_LOOK_INTERVAL_S)
            now_s = self._clock.now_s()
            self._silence_s = lengthen_silence(self._silence_s, elapsed_s=now_s - looked_at_s, heard=self._heard)
            self._heard, looked_at_s = False, now_s
            if self.is_long != was_long:
                was_long = not was_long
                log.warning("runner.silent" if was_long else "runner.answers", placement=placement_id)
                changed()
            if self._silence_s >= HUNG_AFTER_S:
                log.error("runner.hung", placement=placement_id, silence_s=HUNG_AFTER_S)
                return True
        return False


def lengthen_silence(silence_s: float, *, elapsed_s: float, heard: bool) -> float:
    """Return the silence after another look, `elapsed_s` after the last one; a look counts for two intervals at most.

    The time during which the listener itself did not run (stopped, starved, suspended) proves nothing about the other
    side and is not counted: a host that wakes after a minute must not kill its healthy runners.
    """
    return 0.0 if heard else silence_s + min(elapsed_s, 2 * SILENCE_LOOK_INTERVAL_S)


async def watch_status(
    address: str, peer: str, *, take: Callable[[cluster_pb2.RunnerStatus], None], gone: asyncio.Event
) -> None:
    """Pass on every status that the runner pushes; dial again when the stream breaks. Ends once `gone` is set."""
    async with open_channel(address, peer) as channel:
        stub = runner_pb2_grpc.RunnerStub(channel)
        while not gone.is_set():
            try:
                async with contextlib.aclosing(received(stub.WatchLoad(runner_pb2.WatchLoadRequest()))) as statuses:
                    async for status in statuses:
                        if (nonsense := find_out_of_range(status)) is not None:
                            _skipped.note("statuses", {address: str(nonsense)}, runner=address)
                            continue
                        take(status)
                        if _has_drained(status):
                            return  # nothing more will be said, and a server that ends waits for its open streams
            except PunaError as error:
                log.debug("runner.watch_broken", address=address, text=error.message)
            await asyncio.sleep(RECONNECT_S)


async def watch_pings(address: str, peer: str, *, heard: Callable[[], None], gone: asyncio.Event) -> None:
    """Ask for health every second and tell of every answer, whatever it says: it came from a live event loop."""
    async with open_channel(address, peer) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while not gone.is_set():
            with contextlib.suppress(PunaError), domain_errors():
                await stub.Check(health_pb2.HealthCheckRequest(), timeout=PING_TIMEOUT_S)  # type: ignore[attr-defined]
                heard()
            await asyncio.sleep(PING_INTERVAL_S)


async def is_placement(address: str, peer: str, placement: cluster_pb2.PlacementRef, *, clock: Clock) -> bool:
    """Return True if the process that answers at `address` is this placement in this incarnation."""
    deadline_s = clock.now_s() + HANDSHAKE_TIMEOUT_S
    async with open_channel(address, peer) as channel:
        stub = runner_pb2_grpc.RunnerStub(channel)
        while clock.now_s() < deadline_s:
            try:
                with domain_errors():
                    info = await stub.GetInfo(runner_pb2.GetInfoRequest(), timeout=PING_TIMEOUT_S)
                return info.placement == placement
            except PunaError as error:
                log.debug("runner.handshake_failed", address=address, text=error.message)
                await asyncio.sleep(RECONNECT_S)
    return False


def _has_drained(status: cluster_pb2.RunnerStatus) -> bool:
    return status.state == cluster_pb2.RUNNER_STATE_DRAINING and not status.slots_busy and not status.queued

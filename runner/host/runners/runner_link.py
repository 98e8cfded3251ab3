"""Calls of a host to one of its runners: status, signs of life, and its identity at an adoption."""

import asyncio
import contextlib
from collections.abc import Callable

from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.clock import Clock
from common.errors import PunaError
from common.grpc.client import open_channel
from common.grpc.errors import domain_errors, received
from common.telemetry.logs import get_logger
from protos import cluster_pb2, runner_pb2, runner_pb2_grpc

log = get_logger()

HANDSHAKE_TIMEOUT_S = 5.0
PING_INTERVAL_S = 1.0
PING_TIMEOUT_S = 1.0
RECONNECT_S = 0.1


async def watch_status(address: str, *, take: Callable[[cluster_pb2.RunnerStatus], None], gone: asyncio.Event) -> None:
    """Pass on every status that the runner pushes; dial again when the stream breaks. Ends once `gone` is set."""
    async with open_channel(address) as channel:
        stub = runner_pb2_grpc.RunnerStub(channel)
        while not gone.is_set():
            call = stub.WatchLoad(runner_pb2.WatchLoadRequest())
            try:
                async for status in received(call):
                    take(status)
                    if _has_drained(status):
                        return  # nothing more will be said, and a server that ends waits for its open streams
            except PunaError as error:
                log.debug("runner.watch_broken", address=address, text=error.message)
            finally:
                call.cancel()
            await asyncio.sleep(RECONNECT_S)


async def watch_pings(address: str, *, heard: Callable[[], None], gone: asyncio.Event) -> None:
    """Ask for health every second and tell of every answer, whatever it says: it came from a live event loop."""
    async with open_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while not gone.is_set():
            with contextlib.suppress(PunaError), domain_errors():
                await stub.Check(health_pb2.HealthCheckRequest(), timeout=PING_TIMEOUT_S)  # type: ignore[attr-defined]
                heard()
            await asyncio.sleep(PING_INTERVAL_S)


async def is_placement(address: str, placement: cluster_pb2.PlacementRef, *, clock: Clock) -> bool:
    """Return True if the process that answers at `address` is this placement in this incarnation."""
    deadline_s = clock.now_s() + HANDSHAKE_TIMEOUT_S
    async with open_channel(address) as channel:
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

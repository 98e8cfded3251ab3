"""`python -m discovery`: puts discovery together and runs it."""

import asyncio
import sys

from common.clock import SystemClock
from common.grpc.server import bind_server
from common.metrics_page import serve_metrics
from common.service import run_service
from common.telemetry.logs import get_logger
from discovery import metrics
from discovery.converters import report_ages, to_rows
from discovery.registry import NodeRegistry
from discovery.servicer import DiscoveryServicer
from discovery.settings import DiscoverySettings
from protos import discovery_pb2, discovery_pb2_grpc

log = get_logger()

# Registration and watch streams never end by themselves: at a stop they are cut after this time, and hosts dial again.
STOP_GRACE_S = 0.2


async def serve(settings: DiscoverySettings, stop: asyncio.Event) -> None:
    """Serve until `stop` is set.

    Raises:
        StartupError: an address is taken.
    """
    clock = SystemClock()
    registry = NodeRegistry(clock)
    server = bind_server(
        settings.discovery_listen,
        register=lambda grpc_server: discovery_pb2_grpc.add_DiscoveryServicer_to_server(
            DiscoveryServicer(registry, clock), grpc_server
        ),
        services=[discovery_pb2.DESCRIPTOR.services_by_name["Discovery"].full_name],
        plaintext=settings.plaintext,
    )
    metrics.DEVICES.read_from(lambda: to_rows(registry.membership, now_s=clock.now_s()))
    metrics.NODE_GAUGES.read_from(lambda: report_ages(registry.membership, now_s=clock.now_s()))
    metrics_address = serve_metrics(settings.metrics_listen, service="discovery", plaintext=settings.plaintext)
    registry.metrics_address = metrics_address
    silence = asyncio.create_task(registry.watch_silence())
    try:
        await server.start()
        log.info("discovery.ready", address=server.address, metrics_address=metrics_address)
        await stop.wait()
    finally:
        silence.cancel()
        await server.stop(STOP_GRACE_S)


if __name__ == "__main__":
    sys.exit(run_service("discovery", DiscoverySettings, serve))

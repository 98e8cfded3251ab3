"""`python -m discovery`: puts discovery together and runs it."""

import asyncio
import sys
from pathlib import Path

from grpc import aio

import common.telemetry.quick_start  # noqa: F401
from common.audit.acts import ActLog
from common.clock import SystemClock
from common.errors import StartupError
from common.grpc.server import Audience, GrpcServer, bind_server
from common.metrics_page import serve_metrics
from common.service import run_service
from common.telemetry.logs import get_logger
from common.trust.admission import Admission
from common.trust.authority import Authority
from common.trust.callers import server_credentials
from common.trust.identity import own_identity
from common.trust.revocations import Revocations
from discovery import metrics
from discovery.authority_servicer import AuthorityServicer
from discovery.converters import report_ages, to_rows
from discovery.registry import NodeRegistry
from discovery.servicer import DiscoveryServicer
from discovery.settings import DiscoverySettings
from protos import authority_pb2, authority_pb2_grpc, discovery_pb2, discovery_pb2_grpc

log = get_logger()

# Registration and watch streams never end by themselves: at a stop they are cut after this time, and hosts dial again.
STOP_GRACE_S = 0.2
AUTHORITY_SERVICE = authority_pb2.DESCRIPTOR.services_by_name["Authority"].full_name
# A host may have the same PUNA_HOME, and a list of its own there.
REMOVED_FILE = "removed-nodes-discovery.json"


async def serve(settings: DiscoverySettings, stop: asyncio.Event) -> None:
    """Serve until `stop` is set.

    Raises:
        StartupError: an address is taken.
    """
    clock = SystemClock()
    registry = NodeRegistry(clock)
    revocations = Revocations(settings.home.expanduser() / REMOVED_FILE)
    authority = _authority(settings, registry, revocations, clock)

    def register(grpc_server: aio.Server) -> None:
        servicer = DiscoveryServicer(registry, clock, revocations)
        discovery_pb2_grpc.add_DiscoveryServicer_to_server(servicer, grpc_server)
        if authority is not None:
            authority_pb2_grpc.add_AuthorityServicer_to_server(authority, grpc_server)

    services = [discovery_pb2.DESCRIPTOR.services_by_name["Discovery"].full_name]
    services += [AUTHORITY_SERVICE] if authority is not None else []
    server = bind_server(
        settings.discovery_listen,
        register=register,
        services=services,
        plaintext=settings.plaintext,
        revocations=revocations,
    )
    joining = _join_listener(settings.join_listen, authority) if settings.join_listen else None
    metrics.DEVICES.read_from(lambda: to_rows(registry.membership, now_s=clock.now_s()))
    metrics.NODE_GAUGES.read_from(lambda: report_ages(registry.membership, now_s=clock.now_s()))
    metrics_address = serve_metrics(settings.metrics_listen, service="discovery", plaintext=settings.plaintext)
    registry.metrics_address = metrics_address
    silence = asyncio.create_task(registry.watch_silence())
    try:
        await server.start()
        if joining is not None:
            await joining.start()
        log.info(
            "discovery.ready",
            address=server.address,
            metrics_address=metrics_address,
            join_address=joining.address if joining is not None else "",
        )
        await stop.wait()
    finally:
        silence.cancel()
        if joining is not None:
            await joining.stop(STOP_GRACE_S)
        await server.stop(STOP_GRACE_S)


def _authority(
    settings: DiscoverySettings, registry: NodeRegistry, revocations: Revocations, clock: SystemClock
) -> AuthorityServicer | None:
    if settings.authority is None:
        return None
    authority = Authority(settings.authority, acts=_acts(settings.audit_log))
    authority.authorities()  # a directory without one stops the start
    return AuthorityServicer(Admission(authority, refuses=revocations.refuses), registry, clock)


def _acts(audit_log: str) -> ActLog:
    """Open the log of acts.

    Raises:
        StartupError: the file cannot be written.
    """
    acts = ActLog(Path(audit_log).expanduser() if audit_log else None)
    acts.check()
    return acts


def _join_listener(listen: str, authority: AuthorityServicer | None) -> GrpcServer:
    """Bind the listener for machines without a certificate.

    Raises:
        StartupError: this process has no authority or no certificate, or the address is taken.
    """
    identity = own_identity()
    if authority is None or identity is None:
        raise StartupError("PUNA_JOIN_LISTEN needs PUNA_AUTHORITY and PUNA_TRUST; `puna up --address` sets all three")
    return bind_server(
        listen,
        register=lambda grpc_server: authority_pb2_grpc.add_AuthorityServicer_to_server(authority, grpc_server),
        services=[AUTHORITY_SERVICE],
        credentials=server_credentials(identity, asks_callers=False),
        audience=Audience.STRANGERS,
    )


if __name__ == "__main__":
    sys.exit(run_service("discovery", DiscoverySettings, serve))

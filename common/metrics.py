"""The Prometheus page of a process. Metrics themselves are defined beside the code that moves them."""

from prometheus_client import start_http_server

from common.errors import StartupError
from common.network import split_host_port


def serve_metrics(listen: str) -> str:
    """Serve /metrics on `host:port` (port 0: any free one) in a thread; return the address it got.

    Raises:
        StartupError: the port is taken.
    """
    host, port = split_host_port(listen)
    try:
        server, _ = start_http_server(port, addr=host)
    except OSError as error:
        raise StartupError(f"cannot serve metrics on {listen}: {error.strerror}") from error
    return f"{host}:{server.server_port}"

"""The address of the server that a command talks to, parsed from PUNA_HOST. Pure."""

from urllib.parse import urlsplit

from common.network import join_host_port

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 11434
DEFAULT_GRPC_PORT = 11435
# Certificates of the authorities that servers are trusted by; other programs read it, too.
CA_VARIABLE = "SSL_CERT_FILE"
SCHEME_PORTS = {"http": 80, "https": 443}
# A server can listen on these, but a client cannot connect to them.
_EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def listen_address(text: str | None, *, port: int | None, default_port: int) -> str:
    """`host:port` to bind, from `host`, `:port` or `host:port` and an explicit port that wins.

    Raises:
        ValueError: not an address.
    """
    _, host, own_port = _parts(text or "")
    return join_host_port(host, port if port is not None else own_port if own_port is not None else default_port)


def connect_url(text: str, *, tls: bool = False) -> str:
    """Return the base URL to dial, from `host`, `:port`, `host:port` or `http(s)://host[:port]`.

    `tls`: where no scheme is written, it is https.

    Raises:
        ValueError: not an address, or another scheme than http and https.
    """
    scheme, host, port = _parts(text)
    if port is None:
        port = SCHEME_PORTS[scheme] if scheme else DEFAULT_PORT
    return f"{scheme or ('https' if tls else 'http')}://{join_host_port(_EVERY_ADDRESS.get(host, host), port)}"


def is_loopback_url(url: str) -> bool:
    """Return True for a server on this machine, which is never reached through a proxy."""
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def _parts(text: str) -> tuple[str | None, str, int | None]:
    """Scheme, host and port; what is absent is None, an absent host is the loopback."""
    text = text.strip().strip("\"'")
    scheme, separator, _ = text.partition("://")
    if separator and scheme not in SCHEME_PORTS:
        raise ValueError(f"{text!r}: only http and https")
    split = urlsplit(text if separator else f"//{text}")
    try:
        port = split.port
    except ValueError as error:
        raise ValueError(f"{text!r} has no valid port") from error
    if split.path not in ("", "/") or split.query or split.username:
        raise ValueError(f"{text!r} is not host:port")
    return (scheme if separator else None), split.hostname or DEFAULT_HOST, port

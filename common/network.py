"""Addresses as Puna writes them: `host:port`, `[v6]:port` or `unix:/path`."""

import ipaddress
import socket
import sys
from collections.abc import Iterator

UNIX_PREFIX = "unix:"
_ESTABLISHED, _LISTEN = "01", "0A"  # states of a socket in the kernel's tables


def split_host_port(address: str) -> tuple[str, int]:
    """Split `host:port`; brackets around an IPv6 host are removed.

    Raises:
        ValueError: no port, or not a number from 0 to 65535.
    """
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{address!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_host_port(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_private_listener(address: str) -> bool:
    """Return True if only this machine can reach the address: a Unix socket or a loopback host."""
    if address.startswith(UNIX_PREFIX):
        return True
    host, _ = split_host_port(address)
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_taken(address: str) -> bool:
    """Return True if a TCP listener already has `host:port`. Port 0 is never taken."""
    host, port = split_host_port(address)
    if port == 0:
        return False
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False


def notice_silence(connection: socket.socket, *, idle_s: int, interval_s: int, unacknowledged_s: int) -> None:
    """Have the kernel end a connection, or those that a listener accepts, once the other machine is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
    for name, value in zip(names, (idle_s, interval_s, 3, 1000 * unacknowledged_s), strict=True):
        if (option := getattr(socket, name, None)) is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


def reachable(address: str, known_as: str) -> str:
    """Return a listener's `host:port` for dialling: "any host" becomes that of `known_as`, another of its addresses.

    Of several with commas between them the first is taken.
    """
    known_as = known_as.partition(",")[0]
    if not address or not known_as or known_as.startswith(UNIX_PREFIX):
        return address
    host, port = split_host_port(address)
    try:
        is_any = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return address
    return join_host_port(split_host_port(known_as)[0], port) if is_any else address


def listening_inodes(table: str, port: int) -> Iterator[int]:
    """Inodes of the sockets that listen on a port, from the text of /proc/net/tcp or tcp6."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
            yield int(fields[9])


def connected_user(table: str, address: tuple[str, int], other: tuple[str, int]) -> int | None:
    """Return the user whose socket at an IPv4 address is connected to another one, from the text of /proc/net/tcp.

    None: there is none, or it was closed on one side. The kernel shows closed sockets as those of root.
    """
    ends = [_kernel_address(*address), _kernel_address(*other)]
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[1:3] == ends:
            return int(fields[7]) if fields[3] == _ESTABLISHED else None
    return None


def _kernel_address(host: str, port: int) -> str:
    return f"{int.from_bytes(socket.inet_aton(host), sys.byteorder):08X}:{port:04X}"


def peer_address(peer: str) -> str:
    """Return the address in `ipv4:10.0.0.1:5000` or `ipv6:[::1]:5000`, as gRPC writes peers; empty for sockets."""
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return ""
    return rest.rpartition(":")[0].replace("%5B", "[").replace("%5D", "]").strip("[]")

"""Notices that an RPC server of this node is gone under an idle model.

The engine looks at its connections when it computes, and aborts then. Here the kernel reports the end of such a
connection at once, without a byte read or sent: the server serves one client, and would not answer a second one.
"""

import asyncio
import contextlib
import os
import select
import socket
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from common.network import split_host_port
from common.spec.layout import Layout
from common.telemetry.logs import get_logger
from runner.core.host.leases import rpc_server_of

log = get_logger()

DESCRIPTORS = Path("/proc/self/fd")


def own_servers(layout: Layout) -> frozenset[str]:
    """Servers of this node. What other nodes lend has a lease, which its host watches."""
    return frozenset(device.rpc_address for device in layout.devices if rpc_server_of(device.device_id) is not None)


class LentConnections:
    """Owned by the event loop. `on_gone` is called once, with the server's address."""

    def __init__(self, on_gone: Callable[[str], None]) -> None:
        self._on_gone = on_gone
        self._poll: select.epoll | None = None
        self._servers: dict[int, str] = {}  # by descriptor

    def watch(self, servers: Collection[str]) -> None:
        """Follow every connection that the engine has with these; it has loaded, and keeps them."""
        if not servers:
            return
        peers = {peer: server for server in servers for peer in _resolved(server)}
        self._poll = select.epoll()
        for number, peer in _connections():
            if peer in peers:
                with contextlib.suppress(OSError):  # closed meanwhile
                    # The kernel forgets it when the engine closes it, whatever gets the number after that.
                    self._poll.register(number, select.EPOLLRDHUP)
                    self._servers[number] = peers[peer]
        log.info("lent.watched", servers=sorted(servers), connections=len(self._servers))
        asyncio.get_running_loop().add_reader(self._poll.fileno(), self._look)

    def close(self) -> None:
        """Follow nothing any more."""
        if self._poll is not None:
            asyncio.get_running_loop().remove_reader(self._poll.fileno())
            self._poll.close()
            self._poll = None

    def _look(self) -> None:
        assert self._poll is not None, "closed with its reader"
        ended = [self._servers[number] for number, _ in self._poll.poll(0)]
        if ended:
            self.close()
            self._on_gone(ended[0])


def _resolved(server: str) -> set[tuple[str, int]]:
    """Every address that the name may mean; none if it does not resolve."""
    host, port = split_host_port(server)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return set()
    return {(str(address[0]), port) for *_, address in found}


def _connections() -> Iterator[tuple[int, tuple[str, int]]]:
    """Descriptors of this process that are TCP connections, and the other end of each."""
    for number in [int(entry.name) for entry in DESCRIPTORS.iterdir()]:
        # Whatever is closed meanwhile, is no socket, or is not connected.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as copy:
            if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM:
                host, port = copy.getpeername()[:2]
                yield number, (host, port)

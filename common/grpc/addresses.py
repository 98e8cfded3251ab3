"""Every process behind a list of addresses: a name with several addresses stands for several processes.

That is how a headless Service of Kubernetes, or a name in a compose network, lists the replicas of a service.
"""

import asyncio
import socket

from grpc import aio

from common.clock import Clock, SystemClock
from common.grpc.client import ChannelBook
from common.network import UNIX_PREFIX, is_private_listener, join_host_port, split_host_port

# How long an answer of the name service is believed.
RESOLVE_S = 5.0
# A channel to an address that left is closed after so long; until then its calls may still come to their end.
FORGET_S = 60.0


async def resolve(addresses: str) -> list[str]:
    """Return the addresses to dial for "host:port,host:port": each address once, in order.

    Unix sockets and loopback names stay as they are, and so does a name that does not resolve now. Where a name has
    addresses of both families, those of IPv4 are meant: the same processes have the others.
    """
    found = [await _resolve_one(one.strip()) for one in addresses.split(",")]
    return list(dict.fromkeys(address for some in found for address in some))


async def _resolve_one(address: str) -> list[str]:
    if address.startswith(UNIX_PREFIX) or is_private_listener(address):
        return [address]
    host, port = split_host_port(address)
    try:
        rows = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return [address]
    old = sorted({row[4][0] for row in rows if row[0] == socket.AF_INET})
    new = sorted({row[4][0] for row in rows if row[0] == socket.AF_INET6})
    return [join_host_port(str(one), port) for one in old or new] or [address]


class Channels(ChannelBook):
    """A channel to each process behind a list of addresses, opened when first asked for. Lives on the event loop."""

    def __init__(self, addresses: str, clock: Clock | None = None, *, peer: str = "") -> None:
        """`peer`: as `open_channel`."""
        super().__init__(peer)
        self._addresses = addresses
        self._clock = clock or SystemClock()
        self._current: list[str] = []
        self._resolved_at_s = float("-inf")
        self._gone_at_s: dict[str, float] = {}

    async def get(self) -> list[aio.Channel]:
        """At least one, in a stable order; names are asked again after a while."""
        now_s = self._clock.now_s()
        if now_s >= self._resolved_at_s + RESOLVE_S:
            self._resolved_at_s = now_s
            self._current = await resolve(self._addresses)
            await self._forget_gone(now_s)
        return [self.channel(address) for address in self._current]

    async def _forget_gone(self, now_s: float) -> None:
        for address, _ in self._channels:
            self._gone_at_s.setdefault(address, now_s)
        for address in self._current:
            self._gone_at_s.pop(address, None)
        for address in [one for one, at_s in self._gone_at_s.items() if now_s >= at_s + FORGET_S]:
            del self._gone_at_s[address]
            await self.forget(address)

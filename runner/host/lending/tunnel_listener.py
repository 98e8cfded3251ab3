"""The lender's end of the tunnel: the one port of a host that other machines may reach, and what may pass it."""

import asyncio
import contextlib
import socket
from collections.abc import Mapping

from common.errors import StartupError
from common.network import UNIX_PREFIX, join_host_port, split_host_port
from common.telemetry.logs import get_logger
from runner.core.host.tunnel import BadLine, Opening, Purpose, answer_line, read_opening
from runner.host.home import HostHome
from runner.host.lending.lease import DeviceLease, Leases
from runner.host.lending.tunnel_identity import TunnelIdentity, make_identity
from runner.host.lending.tunnel_streams import BROKEN, TunnelStream, accept_tls, carry, watch_peer
from runner.host.settings import HostSettings

log = get_logger()

OPENING_TIMEOUT_S = 5.0
SERVER_TIMEOUT_S = 5.0
BACKLOG = 16
CONNECTIONS_MAX = 256
_WILDCARDS = frozenset({"0.0.0.0", "::", ""})


class TunnelListener:
    """Admits the holder of a lease's certificate, for that lease alone. Without leases it admits no client."""

    def __init__(self, identity: TunnelIdentity, leases: Mapping[str, DeviceLease]) -> None:
        """`leases`: the current ones, by placement id."""
        self.identity = identity
        self.address = ""  # under which others reach it
        self._leases = leases
        self._socket: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def listen(self, address: str) -> str:
        """Take the address, port 0 any free one; returns it as bound.

        Raises:
            StartupError: it cannot be had.
        """
        try:
            host, port = split_host_port(address)
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.create_server((host, port), family=family, backlog=BACKLOG)
        except (OSError, ValueError) as error:
            raise StartupError(f"PUNA_TUNNEL_LISTEN: cannot listen on {address}: {error}") from error
        self._socket.setblocking(False)
        return join_host_port(host, self._socket.getsockname()[1])

    async def run(self) -> None:
        """Accept until cancelled."""
        assert self._socket is not None, "listen first"
        loop = asyncio.get_running_loop()
        try:
            while True:
                connection, address = await loop.sock_accept(self._socket)
                if len(self._tasks) >= CONNECTIONS_MAX or not self._leases:
                    connection.close()
                    continue
                task = asyncio.create_task(self._serve(connection, str(address[0])))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        finally:
            self._socket.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, connection: socket.socket, address: str) -> None:
        borrowers = {lease.terms.borrower_certificate for lease in self._leases.values()}
        try:
            watch_peer(connection)
            stream = await accept_tls(connection, self.identity.listening(borrowers), timeout_s=OPENING_TIMEOUT_S)
        except (*BROKEN, TimeoutError) as error:
            log.warning("tunnel.refused", peer=address, text=str(error))
            return
        try:
            async with asyncio.timeout(OPENING_TIMEOUT_S):
                opening = read_opening(await stream.read_line())
            lease = self._lease_for(opening, stream)
            if lease is None:
                log.warning("tunnel.refused", peer=address, placement=opening.placement_id)
                await _answer(stream, "nothing is lent to this placement by this certificate")
            elif opening.purpose is Purpose.DATA:
                await _serve_data(stream, lease, opening.channel)
            else:
                await _serve_hold(stream, lease, opening.purpose)
        except (*BROKEN, BadLine, TimeoutError) as error:
            log.info("tunnel.broken", peer=address, text=str(error))
        finally:
            stream.close()

    def _lease_for(self, opening: Opening, stream: TunnelStream) -> DeviceLease | None:
        lease = self._leases.get(opening.placement_id)
        shown = stream.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        if lease is None or lease.generation != opening.generation or lease.terms.borrower_certificate != shown:
            return None
        return lease


async def _serve_hold(stream: TunnelStream, lease: DeviceLease, purpose: Purpose) -> None:
    """Stay for as long as the borrower does, or the lease."""
    refusal = lease.hold(purpose)
    await _answer(stream, refusal)
    if refusal:
        return
    try:
        async with lease.connection():
            await stream.reader.read(1)
    finally:
        lease.release()


async def _serve_data(stream: TunnelStream, lease: DeviceLease, channel: int) -> None:
    if not lease.in_use or channel >= len(lease.servers):
        await _answer(stream, "hold the lease first" if not lease.in_use else f"no channel {channel}")
        return
    host, port = split_host_port(lease.servers[channel])
    async with lease.connection():
        try:
            async with asyncio.timeout(SERVER_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError) as error:
            await _answer(stream, f"the RPC server is gone: {error}")
            return
        plain = TunnelStream(reader, writer)
        try:
            await _answer(stream, "")
            # A server ends no connection that is used: it is gone, and an engine that is idle would not notice.
            await carry(plain, stream, plain_ended_first=lambda: lease.lose_server(lease.servers[channel]))
        finally:
            plain.close()


async def _answer(stream: TunnelStream, refusal: str) -> None:
    stream.writer.write(answer_line(refusal))
    await stream.writer.drain()
    if refusal:
        with contextlib.suppress(*BROKEN):
            stream.writer.close()
            await stream.writer.wait_closed()


def open_tunnel(settings: HostSettings, home: HostHome, *, node_id: str, leases: Leases) -> TunnelListener | None:
    """Open the tunnel if this node lends and borrows; None if not.

    Raises:
        StartupError: the address is taken, or others could not dial it.
    """
    if not settings.rpc:
        return None
    identity = make_identity(home.directory / "tunnel.pem", node_id=node_id)
    listener = TunnelListener(identity, leases)
    listener.address = _advertised(listener.listen(settings.tunnel_listen or _beside(settings.node_listen)), settings)
    return listener


def _beside(node_listen: str) -> str:
    """Return an address with a free port on the host's own interface, so that others reach both alike."""
    if node_listen.startswith(UNIX_PREFIX):
        return "127.0.0.1:0"
    return join_host_port(split_host_port(node_listen)[0], 0)


def _advertised(bound: str, settings: HostSettings) -> str:
    host, port = split_host_port(bound)
    wanted = settings.tunnel_advertise
    if not wanted and settings.node_advertise:
        wanted = split_host_port(settings.node_advertise)[0]
    if not wanted and host in _WILDCARDS:
        raise StartupError(
            f"others cannot dial {bound}; set PUNA_TUNNEL_ADVERTISE to the host name under which they reach this node"
        )
    return join_host_port(wanted or host, port)

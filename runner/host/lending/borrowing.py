"""The borrower's end of the tunnel: devices of other nodes as RPC servers on loopback, for one runner alone."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common.errors import ModelUnavailable, NotSupported
from common.network import connected_user, split_host_port
from common.sandbox.confinement import RUNNER_USERS
from common.telemetry.logs import get_logger
from protos import cluster_pb2, host_pb2
from runner.core.host.leases import rpc_server_of
from runner.core.host.tunnel import BadLine, Opening, Purpose, Refused, check_answer, opening_line
from runner.host.lending.tunnel_identity import TunnelIdentity
from runner.host.lending.tunnel_streams import BROKEN, TunnelStream, carry, dial_tls

log = get_logger()

DIAL_TIMEOUT_S = 5.0
LOOPBACK = "127.0.0.1"
CONNECTIONS_MAX = 8  # of one channel: the engine has one, its greeting another, both may be closing
_FAILED = (*BROKEN, BadLine, Refused, TimeoutError)


@dataclass(slots=True)
class _Channel:
    """One RPC server of a peer, and the loopback port that stands for it here."""

    server: asyncio.Server
    address: str
    connections: set[asyncio.Task[None]] = field(default_factory=set)


class Borrowed:
    """Devices that one runner or measurement borrows. `lost` is set when a lender is gone; `lost_node` names it."""

    def __init__(self, identity: TunnelIdentity, purpose: Purpose) -> None:
        self.lost = asyncio.Event()
        self.lost_node = ""
        self._identity = identity
        self._purpose = purpose
        self._channels: dict[tuple[str, int], _Channel] = {}
        self._holds: list[asyncio.Task[None]] = []
        self._streams: list[TunnelStream] = []
        self._devices: dict[tuple[str, str], host_pb2.LentDevice] = {}

    def address_of(self, device: cluster_pb2.DeviceLayers) -> tuple[str, int]:
        """Return the engine's address of a device of another node: address, and number there.

        Raises:
            ModelUnavailable: no peer lends it.
        """
        lent = self._devices.get((device.node_id, device.device_id))
        if lent is None:
            raise ModelUnavailable(f"no peer lends device {device.device_id} of node {device.node_id}")
        return self._channels[device.node_id, lent.channel].address, lent.rpc_device

    def lose(self, node_ids: frozenset[str]) -> None:
        """Treat these lenders as gone."""
        self.lost_node = self.lost_node or next((node for node, _ in self._channels if node in node_ids), "")
        if self.lost_node:
            self.lost.set()

    async def close(self) -> None:
        """Let go of everything; lenders notice at once."""
        tasks = list(self._holds)
        for channel in self._channels.values():
            channel.server.close()
            tasks += channel.connections
        for stream in self._streams:
            stream.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def take(self, peer: host_pb2.Peer) -> None:
        """Take hold of a lease, and listen for the engine.

        Raises:
            LenderUnreachable: see there.
        """
        try:
            hold = await self._dial(peer, self._purpose, 0)
        except _FAILED as error:
            raise LenderUnreachable(peer.node_id, str(error) or type(error).__name__) from error
        self._streams.append(hold)
        self._holds.append(asyncio.create_task(self._watch(peer.node_id, hold)))
        for device in peer.devices:
            self._devices[peer.node_id, device.device_id] = device
            if (peer.node_id, device.channel) not in self._channels:
                self._channels[peer.node_id, device.channel] = await self._listen(peer, device.channel)

    async def _watch(self, node_id: str, hold: TunnelStream) -> None:
        try:
            await hold.reader.read(1)
        except BROKEN as error:
            log.info("tunnel.broken", node=node_id, text=str(error))
        self.lost_node = self.lost_node or node_id
        self.lost.set()

    async def _listen(self, peer: host_pb2.Peer, number: int) -> _Channel:
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            plain = TunnelStream(reader, writer)
            if len(channel.connections) >= CONNECTIONS_MAX or not _is_own(writer):
                plain.close()
                return
            task = asyncio.create_task(self._carry(peer, number, plain))
            channel.connections.add(task)
            task.add_done_callback(channel.connections.discard)

        server = await asyncio.start_server(accept, LOOPBACK, 0)
        channel = _Channel(server, f"{LOOPBACK}:{server.sockets[0].getsockname()[1]}")
        return channel

    async def _carry(self, peer: host_pb2.Peer, channel: int, plain: TunnelStream) -> None:
        """One connection of the engine. If the tunnel breaks the engine sees its connection broken, and aborts."""
        try:
            await carry(plain, await self._dial(peer, Purpose.DATA, channel))
        except _FAILED as error:
            log.info("tunnel.broken", node=peer.node_id, text=str(error))
        finally:
            plain.close()

    async def _dial(self, peer: host_pb2.Peer, purpose: Purpose, channel: int) -> TunnelStream:
        host, port = split_host_port(peer.tunnel_address)
        stream = await dial_tls(host, port, self._identity.dialling(peer.certificate), timeout_s=DIAL_TIMEOUT_S)
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                opening = Opening(
                    placement_id=peer.lease.placement_id,
                    generation=peer.lease.generation,
                    purpose=purpose,
                    channel=channel,
                )
                stream.writer.write(opening_line(opening))
                check_answer(await stream.read_line())
        except BaseException:
            stream.close()
            raise
        return stream


def _is_own(writer: asyncio.StreamWriter) -> bool:
    """Return True if a runner of this host connected, and no other user of the machine."""
    ends = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
    user = connected_user(Path("/proc/self/net/tcp").read_text(), *ends)
    return user is not None and (user in (os.geteuid(), 0) or user in RUNNER_USERS)


class LenderUnreachable(ModelUnavailable):
    """A lender cannot be reached from here, or refuses."""

    def __init__(self, node_id: str, text: str) -> None:
        super().__init__(f"node {node_id} does not lend: {text}", retry_after_s=1.0)
        self.node_id = node_id


class Borrower:
    """Borrowing side of this host for runners and measurements. Without an identity this node does not borrow."""

    def __init__(self, identity: TunnelIdentity | None) -> None:
        self._identity = identity

    async def borrow(self, peers: Sequence[host_pb2.Peer], purpose: Purpose) -> Borrowed | None:
        """Take hold of what the peers lend; None if there are none.

        Raises:
            LenderUnreachable: see there; nothing is left open.
            NotSupported: this node does not use devices of others.
        """
        if not peers:
            return None
        if self._identity is None:
            raise NotSupported("this node uses no devices of other nodes; set PUNA_RPC=1")
        borrowed = Borrowed(self._identity, purpose)
        try:
            for peer in peers:
                await borrowed.take(peer)
        except BaseException:
            await borrowed.close()
            raise
        return borrowed


def addressed(layout: cluster_pb2.Layout, borrowed: Borrowed | None) -> cluster_pb2.Layout:
    """Return the runner's layout: devices of RPC servers with an address, those of other nodes with unique ids.

    Raises:
        ModelUnavailable: the layout names a device of another node that no node lends.
    """
    copy = cluster_pb2.Layout()
    copy.CopyFrom(layout)
    for device in copy.devices:
        if device.node_id:
            if borrowed is None:
                raise ModelUnavailable(f"no peer lends device {device.device_id} of node {device.node_id}")
            device.rpc_address, device.rpc_device = borrowed.address_of(device)
            device.device_id = lent_name(device.node_id, device.device_id)
        else:
            server = rpc_server_of(device.device_id)
            if server is not None:
                device.rpc_address, device.rpc_device = server
    return copy


def lent_name(node_id: str, device_id: str) -> str:
    """Return a runner's name for a device of another node: two nodes may have devices of one id."""
    return f"{node_id}/{device_id}"


def renamed(report: cluster_pb2.MemoryReport, layout: cluster_pb2.Layout) -> cluster_pb2.MemoryReport:
    """Return a runner's report with the devices as the layout names them, by node and id."""
    names = {
        lent_name(device.node_id, device.device_id): (device.node_id, device.device_id)
        for device in layout.devices
        if device.node_id
    }
    if not names:
        return report
    copy = cluster_pb2.MemoryReport()
    copy.CopyFrom(report)
    for memory in copy.devices:
        memory.node_id, memory.device_id = names.get(memory.device_id, ("", memory.device_id))
    return copy


def with_status(record: cluster_pb2.RunnerRecord, status: cluster_pb2.RunnerStatus) -> cluster_pb2.RunnerRecord:
    """Return the record of a runner with a newer status, whose progress never goes back.

    A new message each time: one that lives on keeps the memory of everything that it ever held.
    """
    newer = cluster_pb2.RunnerRecord()
    newer.CopyFrom(record)
    newer.status.CopyFrom(status)
    newer.status.load_fraction = max(status.load_fraction, record.status.load_fraction)
    if status.HasField("memory"):
        newer.status.memory.CopyFrom(renamed(status.memory, record.layout))
    if status.error.HasField("attempted"):
        newer.status.error.attempted.CopyFrom(renamed(status.error.attempted, record.layout))
    return newer

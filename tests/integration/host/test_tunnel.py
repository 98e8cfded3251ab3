"""The tunnel between two hosts with a plain server behind it: who gets in, and what arrives."""

import asyncio
import os
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from common.errors import ModelUnavailable
from common.sandbox.confinement import RUNNER_USERS
from protos import cluster_pb2, host_pb2
from runner.core.host.leases import LentAt, Share, Terms
from runner.core.host.tunnel import Opening, Purpose, opening_line
from runner.host.lending.borrowing import Borrowed, Borrower
from runner.host.lending.lease import DeviceLease
from runner.host.lending.tunnel_identity import TunnelIdentity, make_identity
from runner.host.lending.tunnel_listener import TunnelListener
from tests.ports import free_port
from tests.waiting import until

DEADLINE_S = 60.0
MIB = 1024 * 1024
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Ends:
    """Both ends of a tunnel in this process, with one lease and a server behind it."""

    lender: TunnelIdentity
    borrower: TunnelIdentity
    address: str
    lease: DeviceLease
    leases: dict[str, DeviceLease]
    borrowed: list[Borrowed] = field(default_factory=list)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    def peer(self, **changes: object) -> host_pb2.Peer:
        parts = {
            "node_id": "lender",
            "lease": cluster_pb2.PlacementRef(placement_id="p", generation=1),
            "tunnel_address": self.address,
            "certificate": self.lender.certificate,
            "devices": [host_pb2.LentDevice(device_id="gpu", channel=0, rpc_device=0)],
            **changes,
        }
        return host_pb2.Peer(**parts)  # type: ignore[arg-type]

    async def borrow(self, purpose: Purpose = Purpose.SERVE, **changes: object) -> Borrowed:
        borrowed = await Borrower(self.borrower).borrow([self.peer(**changes)], purpose)
        assert borrowed is not None
        self.borrowed.append(borrowed)
        return borrowed

    async def connect(self, borrowed: Borrowed) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """As the engine does."""
        address, _ = borrowed.address_of(cluster_pb2.DeviceLayers(device_id="gpu", node_id="lender"))
        host, _, port = address.rpartition(":")
        return await self.dial(host, int(port))

    async def dial(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection that is gone after the test."""
        reader, writer = await asyncio.open_connection(host, port)
        self.writers.append(writer)
        return reader, writer


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Give everything back, and end when the other side has."""
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.close()


@asynccontextmanager
async def tunnel(directory: Path, serve: Serve = echo) -> AsyncIterator[Ends]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    lender = make_identity(directory / "lender.pem", node_id="lender")
    borrower = make_identity(directory / "borrower.pem", node_id="borrower")
    share = Share(device_id="gpu", weights_bytes=1, later_bytes=1, max_bytes=0)
    lease = DeviceLease("p", 1, Terms(borrower_certificate=borrower.certificate, shares=(share,)), "borrower")
    lease.servers = (f"127.0.0.1:{server.sockets[0].getsockname()[1]}",)
    lease.devices = {"gpu": LentAt(channel=0, rpc_device=0)}
    lease.ready.set()
    leases = {"p": lease}
    listener = TunnelListener(lender, leases)
    address = listener.listen("127.0.0.1:0")
    running = asyncio.create_task(listener.run())
    ends = Ends(lender, borrower, address, lease, leases)
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield ends
    finally:
        for writer in ends.writers:
            writer.transport.abort()
        for borrowed in ends.borrowed:
            await borrowed.close()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        server.close()


async def test_bytes_arrive_whole_and_each_direction_ends_by_itself(tmp_path: Path) -> None:
    async with tunnel(tmp_path) as ends:
        reader, writer = await ends.connect(await ends.borrow())
        sent = bytes(range(256)) * 20_000
        writer.write(sent)
        writer.write_eof()
        assert await reader.read(-1) == sent


ECHO_AS = """
import os, socket, sys
os.setgroups([])
os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[1]))
with socket.socket() as client:
    client.settimeout(30)
    client.connect(("127.0.0.1", int(sys.argv[2])))
    try:
        client.sendall(b"hello")
        print(client.recv(5))
    except ConnectionError:
        print(b"")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(("user", "heard"), [(0, b"hello"), (RUNNER_USERS[7], b"hello"), (65534, b"")])
async def test_only_users_of_runners_reach_what_is_borrowed(user: int, heard: bytes, tmp_path: Path) -> None:
    async with tunnel(tmp_path) as ends:
        borrowed = await ends.borrow()
        address, _ = borrowed.address_of(cluster_pb2.DeviceLayers(device_id="gpu", node_id="lender"))
        words = ["-c", ECHO_AS, str(user), address.rpartition(":")[2]]
        process = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=asyncio.subprocess.PIPE)
        output, _ = await process.communicate()
    assert output.decode().strip() == repr(heard)


async def test_a_slow_reader_holds_the_sender_back(tmp_path: Path) -> None:
    accepted = 0

    async def pour(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        for _number in range(256):
            writer.write(bytes(MIB))
            await writer.drain()
            accepted += 1
        writer.close()

    async with tunnel(tmp_path, pour) as ends:
        reader, _ = await ends.connect(await ends.borrow())
        assert await reader.readexactly(MIB)
        standing = -1
        while standing != accepted:  # until nothing moves for a while
            standing = accepted
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await asyncio.Event().wait()
        assert accepted < 128, "everything was taken although nobody read"
        await reader.readexactly(255 * MIB)
        assert await reader.read() == b""
        assert accepted == 256


async def test_a_stranger_does_not_get_past_the_handshake(tmp_path: Path) -> None:
    async with tunnel(tmp_path) as ends:
        stranger = make_identity(tmp_path / "stranger.pem", node_id="borrower")
        with pytest.raises(ModelUnavailable, match="does not lend"):
            await Borrower(stranger).borrow([ends.peer()], Purpose.SERVE)
        with pytest.raises(OSError):  # noqa: PT011  # whichever way the refusal arrives
            await _ask_without_certificate(ends.address)
        assert not ends.lease.in_use


async def test_plain_bytes_get_nothing(tmp_path: Path) -> None:
    async with tunnel(tmp_path) as ends:
        host, _, port = ends.address.rpartition(":")
        reader, writer = await ends.dial(host, int(port))
        writer.write(bytes([14]) + (24).to_bytes(8, "little") + bytes(24))  # the engine's own greeting
        writer.write_eof()
        answered = b""
        with suppress(ConnectionResetError):
            answered = await reader.read()
        assert answered[:1] in (b"", b"\x15"), "a TLS alert at most"


async def test_a_lender_with_another_certificate_is_not_believed(tmp_path: Path) -> None:
    async with tunnel(tmp_path) as ends:
        with pytest.raises(ModelUnavailable, match="certificate verify failed"):
            await ends.borrow(certificate=ends.borrower.certificate)
        assert not ends.lease.in_use


async def test_without_a_lease_nobody_gets_an_answer(tmp_path: Path) -> None:
    async with tunnel(tmp_path) as ends:
        ends.leases.clear()
        with pytest.raises(ModelUnavailable):
            await ends.borrow()


@pytest.mark.parametrize("change", [{"placement_id": "q"}, {"generation": 2}])
async def test_a_lease_serves_its_own_placement_alone(tmp_path: Path, change: dict[str, object]) -> None:
    async with tunnel(tmp_path) as ends:
        wanted = cluster_pb2.PlacementRef(placement_id="p", generation=1)
        for name, value in change.items():
            setattr(wanted, name, value)
        with pytest.raises(ModelUnavailable, match="nothing is lent to this placement"):
            await ends.borrow(lease=wanted)


async def test_one_runner_holds_a_lease_at_a_time(tmp_path: Path) -> None:
    async with tunnel(tmp_path) as ends:
        first = await ends.borrow()
        with pytest.raises(ModelUnavailable, match="in use"):
            await ends.borrow()
        await first.close()
        await until(lambda: not ends.lease.in_use, what="the lease is free")
        assert ends.lease.was_served


async def test_a_measurement_leaves_the_lease_for_the_runner(tmp_path: Path) -> None:
    async with tunnel(tmp_path) as ends:
        await (await ends.borrow(Purpose.MEASURE)).close()
        await until(lambda: not ends.lease.in_use, what="the lease is free")
        assert not ends.lease.was_served
        await ends.borrow()


async def test_the_end_of_a_lease_breaks_its_connections_and_the_borrower_notices(tmp_path: Path) -> None:
    async with tunnel(tmp_path) as ends:
        borrowed = await ends.borrow()
        reader, writer = await ends.connect(borrowed)
        writer.write(b"x")
        assert await reader.read(1) == b"x"
        ends.lease.closing = True
        ends.lease.break_connections()
        await borrowed.lost.wait()
        assert borrowed.lost_node == "lender"
        assert await _is_over(reader)


async def test_a_server_that_died_breaks_the_engines_connection(tmp_path: Path) -> None:
    async with tunnel(tmp_path) as ends:
        ends.lease.servers = (f"127.0.0.1:{free_port()}",)
        borrowed = await ends.borrow()
        reader, _ = await ends.connect(borrowed)
        assert await _is_over(reader)


async def test_a_server_that_dies_under_an_idle_borrower_is_noticed_at_once(tmp_path: Path) -> None:
    served: list[asyncio.StreamWriter] = []

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(writer)
        writer.write(await reader.read(1))

    async with tunnel(tmp_path, hold) as ends:
        borrowed = await ends.borrow()
        reader, writer = await ends.connect(borrowed)
        writer.write(b"x")
        assert await reader.read(1) == b"x"
        assert ends.lease.lost_server == ""
        (connection,) = served
        connection.transport.abort()
        await until(lambda: ends.lease.lost_server != "", what="the lease knows that its server is gone")
        assert ends.lease.lost_server == ends.lease.servers[0]


async def test_a_borrower_that_hangs_up_is_no_death_of_the_server(tmp_path: Path) -> None:
    async with tunnel(tmp_path) as ends:
        borrowed = await ends.borrow()
        reader, writer = await ends.connect(borrowed)
        writer.write(b"x")
        assert await reader.read(1) == b"x"
        writer.write_eof()
        assert await _is_over(reader)
        _, again = await ends.connect(borrowed)
        again.transport.abort()
        await borrowed.close()
        await until(lambda: not ends.lease.in_use, what="the lease is free")
        assert ends.lease.lost_server == ""


def test_the_key_is_for_its_owner_alone_and_differs_from_start_to_start(tmp_path: Path) -> None:
    first = make_identity(tmp_path / "tunnel.pem", node_id="n" * 200)
    second = make_identity(tmp_path / "tunnel.pem", node_id="n" * 200)
    assert first.certificate != second.certificate
    assert second.path.stat().st_mode & 0o777 == 0o600


async def _ask_without_certificate(address: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    try:
        writer.write(opening_line(Opening(placement_id="p", generation=1, purpose=Purpose.SERVE)))
        if await reader.read(1) == b"":
            raise ConnectionResetError
    finally:
        writer.transport.abort()


async def _is_over(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read(1) == b""
    except OSError:
        return True

"""The end of a connection to an RPC server of the node is told by the kernel, without a byte on it."""

import socket

from common.spec.layout import DeviceLayers, Layout
from runner.serve.lent_connections import LentConnections, own_servers
from tests.waiting import until

LISTEN = ("127.0.0.1", 0)


def address(server: socket.socket) -> str:
    host, port = server.getsockname()
    return f"{host}:{port}"


async def test_the_end_of_a_watched_connection_is_told_once_and_nothing_is_read_before() -> None:
    with (
        socket.create_server(LISTEN) as watched,
        socket.create_server(LISTEN) as other,
        socket.create_connection(watched.getsockname()) as mine,
        socket.create_connection(other.getsockname()),
    ):
        far, elsewhere = watched.accept()[0], other.accept()[0]
        gone: list[str] = []
        connections = LentConnections(gone.append)
        connections.watch([address(watched)])
        elsewhere.close()  # nobody asked for that one
        far.sendall(b"bytes for the engine")
        assert mine.recv(64, socket.MSG_PEEK) != b""
        assert gone == []
        far.close()
        await until(lambda: gone == [address(watched)], what="the end is told")
        assert mine.recv(64) == b"bytes for the engine"
        connections.close()
        assert gone == [address(watched)]


async def test_a_connection_that_the_engine_closes_itself_is_not_lost() -> None:
    with socket.create_server(LISTEN) as server:
        gone: list[str] = []
        connections = LentConnections(gone.append)
        kept = socket.create_connection(server.getsockname())
        far_kept = server.accept()[0]
        closed = socket.create_connection(server.getsockname())
        far_closed = server.accept()[0]
        connections.watch([address(server)])
        closed.close()
        far_closed.close()
        far_kept.close()
        await until(lambda: bool(gone), what="the one that was kept has ended")
        assert gone == [address(server)]
        kept.close()


async def test_without_servers_nothing_is_watched() -> None:
    connections = LentConnections(lambda _: None)
    connections.watch([])
    connections.close()


def test_only_servers_of_the_node_itself_are_watched() -> None:
    layout = Layout(
        devices=(
            DeviceLayers("GPU-1", 3),
            DeviceLayers("RPC:10.0.0.1:5000/0", 3, rpc_address="10.0.0.1:5000"),
            DeviceLayers("RPC:10.0.0.1:5000/1", 3, rpc_address="10.0.0.1:5000", rpc_device=1),
            DeviceLayers("b/RPC:127.0.0.1:5000/0", 3, rpc_address="127.0.0.1:4000"),
            DeviceLayers("b/GPU-2", 3, rpc_address="127.0.0.1:4001"),
        )
    )
    assert own_servers(layout) == {"10.0.0.1:5000"}

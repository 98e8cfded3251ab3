"""The look at an RPC server before the engine may."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from runner.engine.devices.rpc_hello import RpcMemory, RpcUnusable, rpc_hello
from tests.ports import free_port
from tests.waiting import Stopwatch


@contextmanager
def server(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A listener on loopback that hands its one connection to `serve`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, suppress(OSError):  # a client that is not pleased hangs up
                serve(connection)

        thread = threading.Thread(target=accept)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def answering(*answers: bytes) -> Callable[[socket.socket], None]:
    def serve(connection: socket.socket) -> None:
        for answer in answers:
            _, length = struct.unpack("<BQ", connection.recv(9, socket.MSG_WAITALL))
            if length:
                connection.recv(length, socket.MSG_WAITALL)
            connection.sendall(struct.pack("<Q", len(answer)) + answer)
        connection.recv(1)

    return serve


def test_memory_of_every_lent_device_is_told() -> None:
    answers = (bytes([7, 0, 0]), struct.pack("<I", 2), struct.pack("<QQ", 1, 2), struct.pack("<QQ", 3, 4))
    with server(answering(*answers)) as port:
        assert rpc_hello("127.0.0.1", port, timeout_s=30) == (
            RpcMemory(free_bytes=1, total_bytes=2),
            RpcMemory(free_bytes=3, total_bytes=4),
        )


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([bytes([6, 0, 0])], "protocol"),
        ([bytes([7, 0, 0]), struct.pack("<I", 1000)], "claims 1000 devices"),
        ([bytes([7, 0, 0]), b"??"], "no usable RPC server"),
        ([bytes(65)], "answer of 65 bytes"),
    ],
)
def test_other_answers_are_refused(answers: list[bytes], words: str) -> None:
    with server(answering(*answers)) as port, pytest.raises(RpcUnusable, match=words):
        rpc_hello("127.0.0.1", port, timeout_s=30)


def test_a_server_that_is_busy_with_somebody_else_is_given_up_in_time() -> None:
    watch = Stopwatch()
    silent = server(lambda connection: void(connection.recv(1024, socket.MSG_WAITALL)))
    with silent as port, pytest.raises(RpcUnusable, match="does not answer"):
        rpc_hello("127.0.0.1", port, timeout_s=0.2)
    watch.assert_within(2, "it is given up")


def test_nobody_there_is_said() -> None:
    with pytest.raises(RpcUnusable, match="refused"):
        rpc_hello("127.0.0.1", free_port(), timeout_s=30)


def void(_: object) -> None:
    """Drop a result."""

"""Asks an RPC server of ggml for its version, devices and memory in plain Python, with a deadline.

The engine's own `ggml_backend_rpc_add_server` aborts the process when no server answers and blocks without a limit
while the server serves another client, so it is called only after this has succeeded.
Source: ggml-rpc.h and ggml-rpc.cpp of llama.cpp, protocol 7: request = u8 command, u64 length, payload; answer = u64
length, payload; little-endian.
"""

import socket
import struct
import time
from dataclasses import dataclass

from common.errors import ModelUnavailable

PROTOCOL_MAJOR = 7
HELLO, DEVICE_COUNT, GET_DEVICE_MEMORY = 14, 15, 11
HELLO_PAYLOAD = bytes(24)
ANSWER_BYTES_MAX = 64
DEVICES_MAX = 16


class RpcUnusable(ModelUnavailable):
    """No server answers there, or not in this protocol. The text says which; a leased server times out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcMemory:
    """Memory of one lent device."""

    free_bytes: int
    total_bytes: int


def rpc_hello(host: str, port: int, *, timeout_s: float) -> tuple[RpcMemory, ...]:
    """Return the memory of each device that the server lends, in its order.

    Raises:
        RpcUnusable: do not let the engine near it.
    """
    deadline_s = time.monotonic() + timeout_s
    try:
        with socket.create_connection((host, port), timeout_s) as connection:
            call = _Call(connection, deadline_s)
            version = call(HELLO, HELLO_PAYLOAD)
            if len(version) < 3 or version[0] != PROTOCOL_MAJOR:
                raise RpcUnusable(f"{host}:{port} speaks RPC protocol {tuple(version[:3])}, not {PROTOCOL_MAJOR}.x")
            (count,) = struct.unpack("<I", call(DEVICE_COUNT, b""))
            if count > DEVICES_MAX:
                raise RpcUnusable(f"{host}:{port} claims {count} devices")
            pairs = [struct.unpack("<QQ", call(GET_DEVICE_MEMORY, struct.pack("<I", i))) for i in range(count)]
    except TimeoutError as error:
        raise RpcUnusable(f"{host}:{port} does not answer within {timeout_s:g} s (leased, or not there)") from error
    except (OSError, struct.error) as error:
        raise RpcUnusable(f"{host}:{port} is no usable RPC server: {error}") from error
    return tuple(RpcMemory(free_bytes=free, total_bytes=total) for free, total in pairs)


class _Call:
    """One request and its answer at a time on an open connection."""

    def __init__(self, connection: socket.socket, deadline_s: float) -> None:
        self._connection = connection
        self._deadline_s = deadline_s

    def __call__(self, command: int, payload: bytes) -> bytes:
        self._connection.sendall(struct.pack("<BQ", command, len(payload)) + payload)
        (length,) = struct.unpack("<Q", self._read(8))
        if length > ANSWER_BYTES_MAX:
            raise OSError(f"answer of {length} bytes to command {command}")
        return self._read(length)

    def _read(self, count: int) -> bytes:
        parts = b""
        while len(parts) < count:
            remaining_s = self._deadline_s - time.monotonic()
            if remaining_s <= 0:
                raise TimeoutError
            self._connection.settimeout(remaining_s)
            part = self._connection.recv(count - len(parts))
            if not part:
                raise OSError("connection closed")
            parts += part
        return parts

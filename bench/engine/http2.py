"""As much of HTTP/2 and gRPC as a client needs that only stores bytes and reads them later. Pure.

Source: RFC 9113 (frames), RFC 7541 (header fields), gRPC over HTTP/2 (message prefix).
"""

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEAD_BYTES = 9
_FRAME_BYTES_MAX = 16384  # what every peer accepts
_WINDOW_MAX = 2**31 - 1
_WINDOW_DEFAULT = 65535
_INITIAL_WINDOW_SIZE = 4  # a setting
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, ACK, _PADDED = 1, 4, 1, 8


class Frame(NamedTuple):
    """One frame, and where in the connection's bytes its payload ends."""

    kind: int
    flags: int
    stream: int
    payload: bytes
    end: int

    @property
    def ends_stream(self) -> bool:
        """The last frame of its stream; a reset is one too."""
        return self.kind == RESET or (self.kind in (DATA, HEADERS) and bool(self.flags & _END_STREAM))


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return the bytes of one frame."""
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def hello() -> bytes:
    """Return the client's first frames: the largest windows, so that the server never waits for flow control."""
    settings = struct.pack(">HI", _INITIAL_WINDOW_SIZE, _WINDOW_MAX)
    wider = struct.pack(">I", _WINDOW_MAX - _WINDOW_DEFAULT)
    return PREFACE + frame(SETTINGS, 0, 0, settings) + frame(WINDOW_UPDATE, 0, 0, wider)


def answer_to(received: Frame) -> bytes:
    """Return the frames that must answer one of the peer's at once; mostly none."""
    if received.kind in (SETTINGS, PING) and not received.flags & ACK:
        return frame(received.kind, ACK, 0, received.payload if received.kind == PING else b"")
    return b""


def call(stream: int, *, authority: str, path: str, message: bytes) -> bytes:
    """Return the frames of one gRPC call with one request message."""
    fields = (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", authority),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    )
    block = b"".join(_literal_field(name.encode(), value.encode()) for name, value in fields)
    body = b"\0" + struct.pack(">I", len(message)) + message
    assert len(body) <= _WINDOW_DEFAULT, "larger requests would have to wait for the server's window"
    pieces = [body[start : start + _FRAME_BYTES_MAX] for start in range(0, len(body), _FRAME_BYTES_MAX)]
    frames = [frame(HEADERS, _END_HEADERS, stream, block)]
    frames += [
        frame(DATA, _END_STREAM if index == len(pieces) - 1 else 0, stream, piece) for index, piece in enumerate(pieces)
    ]
    return b"".join(frames)


def _literal_field(name: bytes, value: bytes) -> bytes:
    """Return a header field that enters no table, without compression; name and value are shorter than 127 bytes."""
    assert len(name) < 127, "a longer text has a longer length"
    assert len(value) < 127, "a longer text has a longer length"
    return b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value


def whole_frames(data: bytes | bytearray, start: int) -> Iterator[Frame]:
    """Yield the frames that are complete in `data` from `start` on."""
    while len(data) - start >= FRAME_HEAD_BYTES:
        size = int.from_bytes(data[start : start + 3], "big")
        payload_start = start + FRAME_HEAD_BYTES
        if len(data) < payload_start + size:
            return
        stream = int.from_bytes(data[start + 5 : payload_start], "big") & 0x7FFFFFFF
        end = payload_start + size
        yield Frame(data[start + 3], data[start + 4], stream, bytes(data[payload_start:end]), end)
        start = end


def messages(frames: Sequence[Frame], stream: int) -> list[tuple[bytes, int]]:
    """Return the gRPC messages of one stream, each with the end of the frame that completed it."""
    found: list[tuple[bytes, int]] = []
    pending = b""
    for part in frames:
        if part.stream != stream or part.kind != DATA:
            continue
        assert not part.flags & _PADDED, "gRPC pads nothing"
        pending += part.payload
        while len(pending) >= 5 and len(pending) - 5 >= (size := int.from_bytes(pending[1:5], "big")):
            found.append((pending[5 : 5 + size], part.end))
            pending = pending[5 + size :]
    return found

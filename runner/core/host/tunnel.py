"""Messages between the two ends of a tunnel between hosts. Pure.

A connection starts, inside TLS, with one line from the borrower, which names the lease and what the connection is for,
and one line back. A *hold* stays open for as long as the borrower uses the lease and carries nothing; a *data*
connection carries one connection of the engine to one RPC server, as frames: u32 length, payload; length 0 is the end
of that direction.
"""

import json
import struct
from dataclasses import dataclass
from enum import StrEnum

LINE_BYTES_MAX = 1024
FRAME_BYTES_MAX = 1024 * 1024
FRAME_HEADER = struct.Struct("<I")
END_OF_DIRECTION = FRAME_HEADER.pack(0)
CHANNELS_MAX = 16


class Purpose(StrEnum):
    """Purpose of a connection."""

    MEASURE = "measure"  # a hold; when it ends the lease waits for the next one
    SERVE = "serve"  # a hold; when it ends the lease ends
    DATA = "data"


class BadLine(Exception):
    """The other end does not speak this protocol. Close the connection."""


class Refused(Exception):
    """The other end said no; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The borrower's line."""

    placement_id: str
    generation: int
    purpose: Purpose
    channel: int = 0  # of a data connection


def opening_line(opening: Opening) -> bytes:
    """As bytes, with the line's end."""
    fields = {
        "placement": opening.placement_id,
        "generation": opening.generation,
        "purpose": opening.purpose.value,
        "channel": opening.channel,
    }
    return json.dumps(fields).encode() + b"\n"


def read_opening(line: bytes) -> Opening:
    """Parse the borrower's line.

    Raises:
        BadLine: see there.
    """
    try:
        fields = json.loads(line)
        opening = Opening(
            placement_id=str(fields["placement"]),
            generation=int(fields["generation"]),
            purpose=Purpose(fields["purpose"]),
            channel=int(fields["channel"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise BadLine(f"no opening: {line[:80]!r}") from error
    if not 0 <= opening.channel < CHANNELS_MAX:
        raise BadLine(f"channel {opening.channel}")
    return opening


def answer_line(refusal: str = "") -> bytes:
    """Return the lender's line: taken, or why not."""
    return json.dumps({"refused": refusal}).encode() + b"\n"


def check_answer(line: bytes) -> None:
    """Read the lender's line.

    Raises:
        Refused: it said no.
        BadLine: see there.
    """
    try:
        refusal = json.loads(line)["refused"]
    except (ValueError, KeyError, TypeError) as error:
        raise BadLine(f"no answer: {line[:80]!r}") from error
    if refusal:
        raise Refused(str(refusal))


def frame(payload: bytes) -> bytes:
    """Return a part of a direction's bytes, never empty."""
    assert 0 < len(payload) <= FRAME_BYTES_MAX
    return FRAME_HEADER.pack(len(payload)) + payload

"""One streamed chat completion over a plain socket: cheap, so that the client is not what is measured.

While a stream runs, bytes are only stored with their time of arrival; HTTP and JSON are read afterwards.
"""

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any

_READ_BYTES = 64 * 1024
_STREAM_DEADLINE_S = 120.0


class BadAnswer(Exception):
    """The server did not answer as asked; the run proves nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamResult:
    """One answer. Times are seconds on one monotonic clock."""

    sent_s: float
    first_token_s: float
    end_s: float
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int  # of the prompt
    pieces_s: tuple[float, ...]  # when each piece of text arrived
    text: str
    finish_reason: str


async def stream_chat(
    host: str, port: int, body: dict[str, Any], *, key: str = "none", request_id: str = "none"
) -> StreamResult:
    """POST /v1/chat/completions on a connection of its own and read the stream to its end.

    `request_id`: as the gateway's log names it.

    Raises:
        BadAnswer: another status than 200, an error in the stream, or no end.
    """
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {key}\r\nX-Request-Id: {request_id}\r\nConnection: close\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(host, port)
    arrivals: list[tuple[float, bytes]] = []
    try:
        async with asyncio.timeout(_STREAM_DEADLINE_S):
            sent_s = time.perf_counter()
            writer.write(head.encode() + content)
            while data := await reader.read(_READ_BYTES):
                arrivals.append((time.perf_counter(), data))
    except TimeoutError as error:
        raise BadAnswer(f"no end within {_STREAM_DEADLINE_S:.0f} s") from error
    finally:
        writer.close()
    return read_result(sent_s, arrivals)


def read_result(sent_s: float, arrivals: list[tuple[float, bytes]]) -> StreamResult:
    """Read the bytes of a whole answer, given with their times of arrival.

    Raises:
        BadAnswer: as stream_chat.
    """
    events = list(read_events(arrivals))
    pieces_s: list[float] = []
    text: list[str] = []
    finish_reason, usage = "", None
    for arrived_s, event in events:
        if "error" in event:
            raise BadAnswer(f"error in the stream: {event['error']}")
        usage = event.get("usage") or usage
        for choice in event.get("choices") or []:
            delta = choice.get("delta") or {}
            piece = (delta.get("content") or "") + (delta.get("reasoning_content") or "")
            if piece:
                pieces_s.append(arrived_s)
            text.append(piece)
            finish_reason = choice.get("finish_reason") or finish_reason
    if not pieces_s or usage is None:
        raise BadAnswer("the stream had no text or no usage")
    return StreamResult(
        sent_s=sent_s,
        first_token_s=pieces_s[0],
        end_s=arrivals[-1][0],
        prompt_tokens=usage["prompt_tokens"],
        completion_tokens=usage["completion_tokens"],
        cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
        pieces_s=tuple(pieces_s),
        text="".join(text),
        finish_reason=finish_reason,
    )


def read_events(arrivals: list[tuple[float, bytes]]) -> list[tuple[float, dict[str, Any]]]:
    """Return the JSON of each server-sent event with the time at which its last byte arrived."""
    whole = b"".join(data for _, data in arrivals)
    head, separator, body = whole.partition(b"\r\n\r\n")
    if not separator or b" 200 " not in head.split(b"\r\n", 1)[0]:
        raise BadAnswer(whole[:500].decode(errors="replace"))
    chunked = b"transfer-encoding: chunked" in head.lower()
    ends = _arrival_ends(arrivals)
    found: list[tuple[float, dict[str, Any]]] = []
    pending = b""
    for offset, piece in _pieces(body, len(head) + 4, chunked=chunked):
        pending += piece
        *complete, pending = pending.replace(b"\r\n", b"\n").split(b"\n\n")
        for block in complete:
            payload = b"".join(line[5:].strip() for line in block.split(b"\n") if line.startswith(b"data:"))
            if payload and payload != b"[DONE]":
                found.append((_time_at(ends, offset), json.loads(payload)))
    return found


def _pieces(body: bytes, start: int, *, chunked: bool) -> list[tuple[int, bytes]]:
    """Return the body's chunks with the offset of their end in the whole answer; without chunks one per event."""
    if not chunked:
        parts = body.split(b"\n\n")
        sizes = [len(part) + 2 for part in parts]
        ends = [start + sum(sizes[: number + 1]) for number in range(len(parts))]
        return [(end, part + b"\n\n") for end, part in zip(ends, parts, strict=True)]
    pieces, position = [], 0
    while (line_end := body.find(b"\r\n", position)) >= 0:
        size = int(body[position:line_end].split(b";")[0] or b"0", 16)
        if size == 0:
            break
        pieces.append((start + line_end + 2 + size, body[line_end + 2 : line_end + 2 + size]))
        position = line_end + 2 + size + 2
    return pieces


def _arrival_ends(arrivals: list[tuple[float, bytes]]) -> list[tuple[int, float]]:
    ends, total = [], 0
    for arrived_s, data in arrivals:
        total += len(data)
        ends.append((total, arrived_s))
    return ends


def _time_at(ends: list[tuple[int, float]], offset: int) -> float:
    """Return the time at which the byte before `offset` arrived."""
    return next((arrived_s for end, arrived_s in ends if end >= offset), ends[-1][1])

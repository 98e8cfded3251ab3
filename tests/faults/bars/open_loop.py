"""Requests at a constant rate, whatever becomes of earlier ones, and the account of how each of them ended."""

import asyncio
import contextlib
import json
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import httpx

from bench.stream_client import BadAnswer, read_events
from tests.faults.bars.rig import MODEL

# Longer than any promise: a stream that is open after so long counts as hung.
HUNG_S = 120.0
TOKENS = 24
QUESTIONS = 8
_ADDRESSES = 200  # a gateway takes only so many connections of one address
_READ_BYTES = 256 * 1024
_REFUSALS = frozenset({429, 503})


@dataclass(slots=True)
class Tally:
    """Outcomes of requests. Accepted ones were answered 200; each must end once, in "ok" or an explicit error."""

    asked: int = 0
    accepted: int = 0
    ended_once: int = 0
    ok: int = 0
    refused: int = 0  # with code and Retry-After, before anything was done
    other: Counter[str] = field(default_factory=Counter)
    wrong_bytes: int = 0
    resumes: int = 0
    first_ms: list[float] = field(default_factory=list)
    gap_ms: list[float] = field(default_factory=list)
    whole_ms: list[float] = field(default_factory=list)
    late_ms: list[float] = field(default_factory=list)  # of whole_ms, those due after `late_from_s`
    refused_ms: list[float] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"other": dict(self.other)}  # `asdict` would count the pairs of a Counter


def total(tallies: list[dict[str, Any]]) -> dict[str, Any]:
    """Sum of several accounts, as JSON."""
    found: dict[str, Any] = Tally().as_json() | {"other": Counter()}
    for one in tallies:
        for name, value in one.items():
            found[name] = Counter(found[name]) + Counter(value) if name == "other" else found[name] + value
    return found


def question(number: int, *, tokens: int = TOKENS, **more: Any) -> dict[str, Any]:
    """A request; the same number is the same question. Odd ones are sampled with a seed, the others greedy."""
    sampling = {"temperature": 0.8, "seed": number} if number % 2 else {"temperature": 0}
    content = f"Question {number % QUESTIONS}: what is Puna?"
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": content}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": tokens,
        **sampling,
        **more,
    }


@dataclass(slots=True)
class Answer:
    """One answer as its bytes say."""

    kind: str  # ok, refused, or what went wrong
    status: int = 0
    text: str = ""
    ends: int = 0
    resumes: int = 0
    first_s: float = 0.0
    gap_s: float = 0.0
    whole_s: float = 0.0


async def ask(
    host: str, port: int, body: dict[str, Any], *, due_s: float, source: int = 0, key: str = "none"
) -> Answer:
    """Ask and read to the end; raises OSError if the connection was refused, so that another gateway is asked."""
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {key}\r\nx-puna-debug: 1\r\nConnection: close\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    local = (f"127.0.1.{source % _ADDRESSES + 1}", 0) if host.startswith("127.") else None
    reader, writer = await asyncio.open_connection(host, port, local_addr=local)
    arrivals: list[tuple[float, bytes]] = []
    broken = ""
    try:
        async with asyncio.timeout(HUNG_S):
            writer.write(head.encode() + content)
            while data := await reader.read(_READ_BYTES):
                arrivals.append((time.perf_counter(), data))
    except TimeoutError:
        broken = "hung"
    except OSError as error:
        broken = type(error).__name__
    finally:
        writer.close()
    return read_answer(arrivals, due_s=due_s, broken=broken)


def read_answer(arrivals: list[tuple[float, bytes]], *, due_s: float, broken: str = "") -> Answer:
    """Judge the bytes of an answer. Every way to end but a whole stream or a refusal has a name of its own."""
    whole = b"".join(data for _, data in arrivals)
    head, _, body = whole.partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1]) if head.startswith(b"HTTP/1.1 ") else 0
    end_s = arrivals[-1][0] if arrivals else time.perf_counter()
    if status != httpx.codes.OK:
        # With the code of an error; a connection too many is refused without a body.
        is_typed = b'"code"' in body or not body
        is_refusal = status in _REFUSALS and b"\nretry-after:" in head.lower() and is_typed
        return Answer("refused" if is_refusal else broken or f"status {status}", status, whole_s=end_s - due_s)
    try:
        events = read_events(arrivals)
    except (BadAnswer, ValueError) as error:
        return Answer(broken or f"unreadable: {type(error).__name__}", status)
    texts: list[str] = []
    answer = Answer("truncated", status, whole_s=end_s - due_s)
    times: list[float] = []
    for at_s, event in events:
        if "error" in event:
            answer.kind, answer.ends = f"error {event['error'].get('code')}", answer.ends + 1
            continue
        answer.resumes = max(answer.resumes, event.get("puna", {}).get("resumes", 0))
        for choice in event.get("choices") or ():
            if piece := (choice.get("delta") or {}).get("content"):
                texts.append(piece)
                times.append(at_s)
            answer.ends += bool(choice.get("finish_reason"))
    answer.text = "".join(texts)
    if times:
        answer.first_s = times[0] - due_s
        answer.gap_s = max((later - earlier for earlier, later in pairwise(times)), default=0.0)
    if answer.kind == "truncated" and answer.ends == 1 and whole.count(b"data: [DONE]") == 1 and not broken:
        answer.kind = "ok"
    elif broken:
        answer.kind = broken
    return answer


@dataclass
class OpenLoop:
    """Load until it is stopped. Expected texts are measured while nothing is broken."""

    gateways: Callable[[], list[tuple[str, int]]]
    per_second: float
    tokens: int = TOKENS
    key: str = "none"
    expected: dict[int, str] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    late_from_s: float = math.inf  # by time.perf_counter
    running: set["asyncio.Task[None]"] = field(default_factory=set)
    _sent: int = 0
    _loop: "asyncio.Task[None] | None" = None

    async def measure(self) -> None:
        """Learn the undisturbed answers."""
        for number in range(QUESTIONS):
            host, port = self.gateways()[0]
            answer = await ask(
                host, port, question(number, tokens=self.tokens), due_s=time.perf_counter(), key=self.key
            )
            assert answer.kind == "ok", answer
            self.expected[number] = answer.text

    async def __aenter__(self) -> "OpenLoop":
        await self.measure()
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def start(self) -> None:
        """Send requests until `stop`."""
        self._loop = asyncio.create_task(self._send())

    async def stop(self) -> None:
        """Send nothing more, and wait until all that was sent has ended."""
        if self._loop is not None:
            self._loop.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._loop
            self._loop = None
        await asyncio.gather(*self.running)

    def take(self) -> dict[str, Any]:
        """Return the account since the last call, of those requests that have ended."""
        tally, self.tally = self.tally, Tally()
        return tally.as_json()

    async def _send(self) -> None:
        begin_s, first = time.perf_counter(), self._sent
        while True:
            due_s = begin_s + (self._sent - first) / self.per_second
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            task = asyncio.create_task(self._one(self._sent, due_s))
            self._sent += 1
            self.running.add(task)
            task.add_done_callback(self.running.discard)

    async def _one(self, number: int, due_s: float) -> None:
        number_asked = number % QUESTIONS
        targets = self.gateways()
        answer = Answer("no gateway")
        for turn in range(len(targets)):
            host, port = targets[(number + turn) % len(targets)]
            try:
                answer = await ask(
                    host, port, question(number_asked, tokens=self.tokens), due_s=due_s, source=number, key=self.key
                )
                break
            except OSError as error:  # it does not listen: a balancer goes to the next
                answer = Answer(type(error).__name__)
        self._account(number_asked, answer, is_late=due_s >= self.late_from_s)

    def _account(self, number: int, answer: Answer, *, is_late: bool) -> None:
        tally = self.tally
        tally.asked += 1
        tally.resumes += answer.resumes
        if answer.status == httpx.codes.OK:
            tally.accepted += 1
            tally.ended_once += answer.ends == 1
        if answer.kind == "refused":
            tally.refused += 1
            tally.refused_ms.append(round(1000 * answer.whole_s, 1))
        elif answer.kind != "ok":
            tally.other[answer.kind] += 1
        else:
            tally.ok += 1
            tally.wrong_bytes += answer.text != self.expected[number]
            tally.first_ms.append(round(1000 * answer.first_s, 1))
            tally.gap_ms.append(round(1000 * answer.gap_s, 1))
            tally.whole_ms.append(round(1000 * answer.whole_s, 1))
            tally.late_ms += tally.whole_ms[-1:] if is_late else []

"""A gateway with more requests than it has processor time for: `make bench-overload`, see METHODOLOGY.md."""

import argparse
import asyncio
import gc
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import orjson
import uvloop

from bench.gateway.canned import MODEL, prompt_text
from bench.gateway.processes import Bench, own_cores, processor_s, running_gateway
from bench.machine import ROOT, describe_commit, describe_machine, load_average
from cli.commands.keys import create

# The promises.
GOODPUT_SHARE, ADMITTED_MORE_MS, REFUSED_MS, HEALED_S = 0.95, 250.0, 20.0, 1.0
# Beyond this the generator and the runner, not the gateway, are what is slow.
CLIENTS_SHARE_MAX = 0.9
UNLOADED, LOADS, TENANTS_LOAD, QUIET_SHARE, AFTER = 0.2, (1.0, 1.5, 3.0), 5.0, 0.02, 0.5
_CLIENTS = 12  # of the closed loop that measures the capacity: enough for a full core, too few for a refusal
_ADDRESSES = 200
_ANSWER_TOKENS = 8
_DEADLINE_S = 30.0
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)")


@dataclass(slots=True)
class Loop:
    """Outcomes of a loop; times in milliseconds from the moment at which a request was due."""

    asked: int = 0
    answered_in_time: int = 0  # before the loop's end: what is answered later was owed by then
    first_ms: list[float] = field(default_factory=list)  # of answers
    refused_ms: list[float] = field(default_factory=list)
    sent_late_ms: list[float] = field(default_factory=list)  # the generator's own lag
    refused_at_s: list[float] = field(default_factory=list)
    failed: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    begun_s: float = field(default_factory=time.perf_counter)

    def figures(self) -> dict[str, Any]:
        """Return what the result file keeps."""
        return {
            "asked": self.asked,
            "answered": len(self.first_ms),
            "answered_per_s": round(self.answered_in_time / self.seconds, 1),
            "refused": len(self.refused_ms),
            "failed": self.failed,
            "first_ms": _percentiles(self.first_ms),
            "refused_ms": _percentiles(self.refused_ms),
            "sent_late_ms": _percentiles(self.sent_late_ms),
        }


class ChatConnection(asyncio.Protocol):
    """A connection that is kept, with one request at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.first_s = 0.0
        self._seen = b""
        self._is_answer = False
        self._ended: asyncio.Future[bytes] | None = None

    @property
    def is_open(self) -> bool:
        """False once the server has closed it."""
        return self.transport is not None and not self.transport.is_closing()

    def connection_made(self, transport: Any) -> None:
        """See asyncio.Protocol."""
        self.transport = transport

    async def ask(self, request: bytes) -> bytes:
        """Return the response, of an answer the end of it. Raises: ConnectionError: the connection was closed."""
        assert self.transport is not None
        self.first_s, self._seen, self._is_answer = 0.0, b"", False
        self._ended = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        async with asyncio.timeout(_DEADLINE_S):
            return await self._ended

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._seen += data
        seen = self._seen
        if not self._is_answer:
            if b"\r\n\r\n" not in seen:
                return
            self._is_answer = seen.startswith(b"HTTP/1.1 200")
            length = _LENGTH.search(seen)
            if not self._is_answer and length and len(seen) >= seen.index(b"\r\n\r\n") + 4 + int(length[1]):
                self._end(seen)
        if self._is_answer:
            if not self.first_s and b'"content":"' in seen:
                self.first_s = time.perf_counter()
            if seen.endswith(b"\r\n0\r\n\r\n"):
                self._end(seen)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(exc or ConnectionError("closed"))

    def _end(self, response: bytes) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(response)


class TenantClient:
    """Sends requests of one tenant."""

    def __init__(self, address: str, key: str) -> None:
        """Begin without a connection."""
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        question = {"model": MODEL, "stream": True}
        body = orjson.dumps(question | {"messages": [{"role": "user", "content": prompt_text(_ANSWER_TOKENS, 0)}]})
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n"
        self._request = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
        self._idle: list[ChatConnection] = []
        self._opened = 0

    async def one(self, loop: Loop, due_s: float) -> bool:
        """Send a request and account for it; return True if it was answered."""
        loop.asked += 1
        try:
            stream = await self._stream()
            loop.sent_late_ms.append(1000 * (time.perf_counter() - due_s))
            response = await stream.ask(self._request)
        except (OSError, TimeoutError) as error:
            _count(loop.failed, type(error).__name__)
            return False
        now_s = time.perf_counter()
        if b"\r\nconnection: close" not in response:
            self._idle.append(stream)
        is_whole = response.count(b" word") == _ANSWER_TOKENS and response.count(b"[DONE]") == 1
        if response.startswith(b"HTTP/1.1 200") and is_whole:
            loop.first_ms.append(1000 * (stream.first_s - due_s))
            loop.answered_in_time += now_s <= loop.begun_s + loop.seconds
            return True
        if is_typed_refusal(response):
            loop.refused_ms.append(1000 * (now_s - due_s))
            loop.refused_at_s.append(now_s)
        else:
            _count(loop.failed, response[:40].decode(errors="replace"))
        return False

    async def _stream(self) -> ChatConnection:
        """Take a kept connection, or open one from ever other addresses: a gateway takes only so many of one."""
        while self._idle:
            if (kept := self._idle.pop()).is_open:
                return kept
        self._opened += 1
        source = f"127.0.1.{self._opened % _ADDRESSES + 1}", 0
        loop = asyncio.get_running_loop()
        _, stream = await loop.create_connection(ChatConnection, self._host, self._port, local_addr=source)
        return stream


def is_typed_refusal(response: bytes) -> bool:
    """Return True for the error that clients of this dialect retry later."""
    head, _, body = response.partition(b"\r\n\r\n")
    return head.startswith(b"HTTP/1.1 429") and b"\r\nretry-after: " in head and b'"code":"queue_full"' in body


async def open_loop(client: TenantClient, per_second: float, duration_s: float) -> Loop:
    """Send requests at a constant rate, whatever becomes of earlier ones."""
    outcomes = Loop(seconds=duration_s)
    running: list[asyncio.Task[bool]] = []
    for number in range(round(per_second * duration_s)):
        due_s = outcomes.begun_s + number / per_second
        if (wait_s := due_s - time.perf_counter()) > 0:
            await asyncio.sleep(wait_s)
        running.append(asyncio.create_task(client.one(outcomes, due_s)))
    await asyncio.gather(*running)
    return outcomes


async def capacity_of(client: TenantClient, duration_s: float) -> float:
    """Return the answers a second of a gateway that always has some to make, and few at once."""
    outcomes = Loop(seconds=duration_s)

    async def ask_again_and_again() -> None:
        while time.perf_counter() < outcomes.begun_s + duration_s:
            await client.one(outcomes, time.perf_counter())

    await asyncio.gather(*(ask_again_and_again() for _ in range(_CLIENTS)))
    return outcomes.answered_in_time / duration_s


def verdicts(found: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """Judge a run: name, measured figure, kept or not. Pure."""
    unloaded_ms = found["unloaded"]["first_ms"]["p99"]
    lines: list[tuple[str, str, bool]] = []

    def judge(name: str, figure: float | None, unit: str, holds: Callable[[float], bool]) -> None:
        lines.append((name, f"{figure} {unit}".strip(), figure is not None and holds(figure)))

    for load in LOADS[1:]:
        loop, name = found["loads"][f"{load:g}"], f"{load:g} x"
        share = loop["answered_per_s"] / found["capacity_per_s"]
        more_ms = loop["first_ms"]["p99"] - unloaded_ms if loop["answered"] else None
        judge(f"{name}: goodput of the capacity, >= {GOODPUT_SHARE}", round(share, 3), "", GOODPUT_SHARE.__le__)
        judge(f"{name}: p99 of the first token above unloaded, <= {ADMITTED_MORE_MS:g} ms",
              more_ms and round(more_ms, 1), "ms", ADMITTED_MORE_MS.__ge__)  # fmt: skip
        judge(f"{name}: p99 of refusals, <= {REFUSED_MS:g} ms", loop["refused_ms"]["p99"], "ms", REFUSED_MS.__ge__)
        judge(f"{name}: other ends", float(sum(loop["failed"].values())), "", (0.0).__ge__)
    judge(f"last refusal after the overload, <= {HEALED_S:g} s", found["healed_s"], "s", HEALED_S.__ge__)
    judge("answers after the overload", float(found["after"]["answered"]), "", (1.0).__le__)
    quiet = found["tenants"]["quiet"]
    judge("quiet tenant: refused or failed", float(quiet["refused"] + sum(quiet["failed"].values())), "", (0.0).__ge__)
    more_ms = quiet["first_ms"]["p99"] - unloaded_ms if quiet["answered"] else None
    judge(f"quiet tenant: p99 of the first token above unloaded, <= {ADMITTED_MORE_MS:g} ms",
          more_ms and round(more_ms, 1), "ms", ADMITTED_MORE_MS.__ge__)  # fmt: skip
    return lines


def healed_after_s(overload: Loop, after: Loop, ended_s: float) -> float | None:
    """Return how long after its end an overload was last refused for; None: nothing was refused, so none was seen."""
    refused_at_s = [*overload.refused_at_s, *after.refused_at_s]
    return round(max(0.0, max(refused_at_s) - ended_s), 3) if refused_at_s else None


def main() -> int:
    """Measure, print, write; 1 if a bar was missed."""
    options = _options()
    load_before = load_average()
    cores = own_cores()
    gc.disable()  # a pause of the clients is none of the gateway
    with tempfile.TemporaryDirectory(prefix="puna-bench-") as directory:
        keys = Path(directory) / "keys.json"
        quiet, noisy = make_key("quiet", keys), make_key("noisy", keys)
        with running_gateway(cores, PUNA_API_KEYS_FILE=str(keys)) as bench:
            found = uvloop.run(_measure(bench, quiet, noisy, options.seconds))
    lines = verdicts(found)
    is_measurable = found["clients_core_share"] <= CLIENTS_SHARE_MAX
    outcome = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        **describe_commit(),
        "machine": describe_machine(),
        "load_average_before": load_before,
        **found,
        "verdicts": [{"bar": name, "measured": figure, "kept": kept} for name, figure, kept in lines],
        "measurable": is_measurable,
    }
    path = Path(options.out) / f"{datetime.now(UTC):%Y-%m-%d}-overload.json"
    path.write_text(json.dumps(outcome, indent=1) + "\n")
    print(f"capacity {found['capacity_per_s']:.0f} answers/s; load average before {load_before}")
    if not is_measurable:
        print("not measurable here: the generator and the runner take a whole core")
    for name, figure, kept in lines:
        print(f"{'kept  ' if kept else 'MISSED'}  {name}: {figure}")
    print(path)
    return 0 if all(kept for _, _, kept in lines) else 1


async def _measure(bench: Bench, quiet_key: str, noisy_key: str, seconds: float) -> dict[str, Any]:
    quiet, noisy = TenantClient(bench.http, quiet_key), TenantClient(bench.http, noisy_key)
    await capacity_of(noisy, 2.0)  # warm up: templates, connections, code
    capacity = await capacity_of(noisy, seconds)
    found: dict[str, Any] = {"capacity_per_s": round(capacity, 1)}
    found["unloaded"] = (await open_loop(noisy, UNLOADED * capacity, seconds)).figures()
    found["loads"] = {}
    shares = []
    for load in LOADS:
        pids = [bench.runner_pid, os.getpid()]
        cpu_s, begun_s = sum(processor_s(pid, alone=True) for pid in pids), time.perf_counter()
        loop = await open_loop(noisy, load * capacity, seconds)
        took_s = time.perf_counter() - begun_s
        shares.append((sum(processor_s(pid, alone=True) for pid in pids) - cpu_s) / took_s)
        found["loads"][f"{load:g}"] = loop.figures() | {"clients_core_share": round(shares[-1], 3)}
    ended_s = time.perf_counter()
    after = await open_loop(noisy, AFTER * capacity, 2 * HEALED_S)
    found["after"] = after.figures()
    found["healed_s"] = healed_after_s(loop, after, ended_s)
    loops = await asyncio.gather(
        open_loop(quiet, QUIET_SHARE * capacity, seconds), open_loop(noisy, TENANTS_LOAD * capacity, seconds)
    )
    found["tenants"] = {name: loop.figures() for name, loop in zip(("quiet", "noisy"), loops, strict=True)}
    found["clients_core_share"] = round(max(shares), 3)
    return found


def _percentiles(values: list[float]) -> dict[str, float | None]:
    ordered = sorted(values)
    return {
        name: round(ordered[min(int(len(ordered) * share), len(ordered) - 1)], 1) if ordered else None
        for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    }


def _count(kinds: dict[str, int], kind: str) -> None:
    kinds[kind] = kinds.get(kind, 0) + 1


def make_key(owner: str, file: Path, **options: Any) -> str:
    """Make a key in the file; return its text."""
    with redirect_stdout(StringIO()) as output:
        create({"owner": owner, "tenant": owner, "scopes": ["infer"], **options}, file, as_json=True)
    return str(json.loads(output.getvalue())["key"])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each loop")
    parser.add_argument("--out", default=str(ROOT / "bench" / "results"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

"""Bar 11: 500 clients that never end their request and 50 that do not read their answers, at one gateway."""

import asyncio
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path

from tests.faults.bars.bar import Bar, Figure, Round, at_least, at_most, failures, quantile, tail
from tests.faults.bars.open_loop import OpenLoop
from tests.faults.bars.rig import Rig, rss_bytes, running_rig
from tests.waiting import next_look

PER_SECOND = 5.0
FAKE = {"step_s": 0.02}
READERS_SHARE = 0.1  # of the offenders that send slowly; as many more do not read
SENT_EVERY_S = 1.0
LOOK_S = 0.25
BASE_S = 10.0
CUT_S_MAX = 30.0
CUT_SEEN_S_MAX = 60.0
RSS_MORE_MIB_MAX = 64.0
ANSWERS = 400  # asked for at once by a client that reads none: more bytes than all buffers between take
RECEIVE_BUFFER_BYTES = 4096
_HEAD = b"Host: localhost\r\nx-slow: "
_LARGE = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Offender:
    """A connection of an address of its own, over which bytes pass too slowly."""

    def __init__(self, number: int, *, reads: bool) -> None:
        self._reads = reads
        self._source = f"127.0.{2 + number // 200}.{number % 200 + 1}"
        self._socket = socket.socket()
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        self._socket.bind((self._source, 0))
        address, port = socket.inet_aton(self._source), self._socket.getsockname()[1]
        self.name = f"{int.from_bytes(address, sys.byteorder):08X}:{port:04X}"  # as /proc/net/tcp has it

    async def begin(self, address: tuple[str, int]) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self._socket, address)
        await loop.sock_sendall(
            self._socket, b"POST /v1/chat/completions HTTP/1.1\r\n" + _HEAD if self._reads else _LARGE * ANSWERS
        )

    def go_on(self) -> None:
        """Send one byte more, or read ten."""
        with suppress(OSError):
            if self._reads:
                self._socket.send(b"x")
            else:
                self._socket.recv(10)

    def close(self) -> None:
        self._socket.close()


def _held(rig: Rig, names: set[str]) -> set[str]:
    """Those of these clients to which the gateway's process holds a connection."""
    (_, port), held = rig.gateways()[0], set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        here, there, inode = words[1], words[2], words[9]
        if int(here.rpartition(":")[2], 16) == port and inode != "0":  # without: closed, the kernel sends what is left
            held.add(there)
    return held & names


async def _hold(rig: Rig, offenders: list[Offender]) -> dict[str, float]:
    """Offend until every connection is cut. Each counts from the first look that finds it accepted."""
    names = {one.name for one in offenders}
    since_s: dict[str, float] = {}
    longest_s, most_held, most_bytes = 0.0, 0, 0
    now_s = time.monotonic()
    end_s, due_s = now_s + CUT_SEEN_S_MAX, now_s
    while now_s < end_s:
        held, now_s = _held(rig, names), time.monotonic()
        most_held = max(most_held, len(held))
        longest_s = max([longest_s, *(now_s - since_s.setdefault(name, now_s) for name in held)])
        if not held and len(since_s) == len(names):
            return {"held": most_held, "bytes": most_bytes, "cut_s": longest_s}
        if now_s >= due_s:
            due_s += SENT_EVERY_S
            most_bytes = max(most_bytes, rss_bytes(rig, "gateway-0"))
            for one in offenders:
                one.go_on()
        await next_look(LOOK_S)
    return {"held": most_held, "bytes": most_bytes, "cut_s": float("inf")}


async def _run(directory: Path, numbers: Sequence[int], size: int) -> AsyncIterator[Round]:
    del numbers  # all at once
    async with running_rig(directory, fake=FAKE) as rig:
        load = OpenLoop(rig.gateways, PER_SECOND)
        async with load:
            await asyncio.sleep(BASE_S)
            yield {"phase": "before", "load": load.take()}
            before_bytes = rss_bytes(rig, "gateway-0")
            readers = round(size * READERS_SHARE)
            offenders = [Offender(number, reads=number < size) for number in range(size + readers)]
            try:
                await asyncio.gather(*(one.begin(rig.gateways()[0]) for one in offenders))
                found = await _hold(rig, offenders)
            finally:
                for one in offenders:
                    one.close()
            await load.stop()
            yield {
                "phase": "during",
                "fault": f"{size} slow senders, {readers} slow readers",
                "proven": found["held"] == len(offenders),
                "figures": {"cut_s": found["cut_s"], "more_mib": (found["bytes"] - before_bytes) / 2**20},
                "load": load.take(),
            }


def _judge(rounds: list[Round]) -> list[Figure]:
    phases = {one["phase"]: one for one in rounds}
    if set(phases) != {"before", "during"}:
        return [at_least("phases", len(phases), 2)]
    during = phases["during"]
    share = tail(phases["before"]["load"]["whole_ms"])
    base = quantile(phases["before"]["load"]["whole_ms"], share)
    ratio = [ms / base for ms in during["load"]["whole_ms"]] if base else []
    return [
        *failures(rounds, "requests of others"),
        at_most(f"answers of others, p{100 * share:g} against before", ratio, 2.0, "×", share=share),
        # One second more: until all buffers are full, and a look.
        at_most("every offender cut", [during["figures"]["cut_s"]], CUT_S_MAX + 1.0, "s"),
        at_most("gateway's memory, more", [during["figures"]["more_mib"]], RSS_MORE_MIB_MAX, "MiB"),
    ]


SLOW_CLIENTS = Bar(
    number=11,
    key="slow_clients",
    title="500 slow senders and 50 slow readers at one gateway",
    full=500,
    sample=100,
    unit="slow senders",
    minutes=2,
    per_round=0,
    run=_run,
    judge=_judge,
)

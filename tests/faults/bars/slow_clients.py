"""Bar 11: 500 clients that never end their request and 50 that do not read their answers, at one gateway."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
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
BASE_S = 10.0
CUT_S_MAX = 30.0
CUT_SEEN_S_MAX = 60.0
ACCEPTED_S_MAX = 5.0
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
        self.port = self._socket.getsockname()[1]

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


def _held(rig: Rig, ports: set[int]) -> int:
    """Connections to clients at these ports that the gateway's process still holds."""
    (_, port), held = rig.gateways()[0], 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        here, there, inode = words[1], words[2], words[9]
        is_ours = int(here.rpartition(":")[2], 16) == port and int(there.rpartition(":")[2], 16) in ports
        held += is_ours and inode != "0"  # without: closed, the kernel sends what is left
    return held


async def _run(directory: Path, done: int, size: int) -> AsyncIterator[Round]:
    del done  # all at once
    with running_rig(directory, fake=FAKE) as rig:
        load = OpenLoop(rig.gateways, PER_SECOND)
        async with load:
            await asyncio.sleep(BASE_S)
            yield {"phase": "before", "load": load.take()}
            before_bytes, most_bytes = rss_bytes(rig, "gateway-0"), 0
            readers = round(size * READERS_SHARE)
            offenders = [Offender(number, reads=number < size) for number in range(size + readers)]
            ports = {one.port for one in offenders}
            try:
                await asyncio.gather(*(one.begin(rig.gateways()[0]) for one in offenders))
                begun_s, most_held = time.monotonic(), 0
                while (held := _held(rig, ports)) < len(ports) and time.monotonic() < begun_s + ACCEPTED_S_MAX:
                    most_held = max(most_held, held)
                    await next_look(0.1)
                while held and time.monotonic() < begun_s + CUT_SEEN_S_MAX:
                    most_held = max(most_held, held)
                    for one in offenders:
                        one.go_on()
                    most_bytes = max(most_bytes, rss_bytes(rig, "gateway-0"))
                    await next_look(SENT_EVERY_S)
                    held = _held(rig, ports)
                cut_s = time.monotonic() - begun_s if not held else float("inf")
            finally:
                for one in offenders:
                    one.close()
            await load.stop()
            yield {
                "phase": "during",
                "fault": f"{size} slow senders, {readers} slow readers",
                "proven": most_held == len(offenders),
                "figures": {"cut_s": cut_s, "more_mib": (most_bytes - before_bytes) / 2**20},
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
        # One second more: the interval in which it is looked at.
        at_most("every offender cut", [during["figures"]["cut_s"]], CUT_S_MAX + SENT_EVERY_S, "s"),
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
    run=_run,
    judge=_judge,
)

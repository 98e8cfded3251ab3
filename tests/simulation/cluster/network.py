"""Processes and the network between them: calls that stream messages, late, held up by cuts, ended by deaths.

A connection is reliable, as TCP is: a message that is lost is sent again and comes late, in order. A cut holds messages
in one direction; a peer that is cut off or stopped for `KEEPALIVE_S` is given up on both sides, as gRPC does it.
"""

import asyncio
import random
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from common.closing import closing
from common.errors import ModelUnavailable, PunaError
from tests.simulation.cluster.virtual_time import VirtualClock, VirtualLoop

Message = TypeVar("Message")

DELAY_S = (0.0002, 0.002)
RESENT_S = 0.2  # TCP's least time-out
KEEPALIVE_S = 8.0  # 5 s between pings, 3 s for the answer
WINDOW = 64  # messages that a slow reader holds up


class Process:
    """A process at a place (machine) of the network; its tasks end with it."""

    def __init__(self, network: "Network", name: str, place: str) -> None:
        self.network = network
        self.name = name
        self.place = place
        self.clock = VirtualClock(network.loop)
        self.alive = True
        self.paused_since_s: float | None = None
        self._awake = asyncio.Event()
        self._awake.set()
        self._tasks: dict[asyncio.Task[Any], None] = {}

    @property
    def paused(self) -> bool:
        """Return True while it is stopped by a signal."""
        return self.paused_since_s is not None

    def spawn(self, work: Coroutine[Any, Any, Any], name: str = "") -> asyncio.Task[Any]:
        """Run something for as long as the process lives. An error that is no domain error fails the episode."""
        task = self.network.loop.create_task(work, name=f"{self.name} {name}")
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if self.alive and not task.cancelled() and (error := task.exception()) is not None:
            self.network.bugs.append(error)

    async def awake(self) -> None:
        """Wait until it is not stopped."""
        if self.paused:
            await self._awake.wait()

    def kill(self) -> None:
        """End it at once."""
        if not self.alive:
            return
        self.alive = False
        self.resume()
        for task in list(self._tasks):
            task.cancel()
        self.network.died(self)

    def pause(self) -> None:
        """Stop it, as SIGSTOP does."""
        if self.alive and not self.paused:
            self.paused_since_s = self.network.loop.time()
            self._awake.clear()
            self.network.may_be_gone()

    def resume(self) -> None:
        """Let it go on."""
        self.paused_since_s = None
        self._awake.set()


@dataclass(slots=True, eq=False)
class _Call:
    """One streaming call, as its caller's side sees it."""

    source: Process  # the caller
    target: Process  # the server
    arrived: deque[object] = field(default_factory=deque)
    under_way: deque[object] = field(default_factory=deque)
    last_at_s: float = 0.0
    news: asyncio.Event = field(default_factory=asyncio.Event)
    room: asyncio.Event = field(default_factory=asyncio.Event)
    pump: asyncio.Task[Any] | None = None
    held: int = 0  # messages under way whose time has come behind a cut
    silent_since_s: float | None = None  # one side died behind a cut
    lost: str = ""  # why the connection ended

    def lose(self, why: str) -> None:
        """End the connection on both sides."""
        if not self.lost:
            self.lost = why
            self.news.set()
            if self.pump is not None:
                self.pump.cancel()


class _End:
    """The server has ended the call."""


_END = _End()


class Network:
    """Owner of cuts and calls."""

    def __init__(self, loop: VirtualLoop, seed: int) -> None:
        self.loop = loop
        self.seed = seed
        self.events = 0  # messages that arrived, decode steps, decisions of schedulers
        self.loss = 0.0  # share of messages that are sent again
        self.bugs: list[BaseException] = []
        self._cuts: dict[tuple[str, str], float] = {}  # since when
        self._calls: dict[_Call, None] = {}
        self._sending: dict[asyncio.Task[None], None] = {}  # requests under way without their callers
        self._random = random.Random(f"{seed} network")
        self._healed = asyncio.Event()

    def is_cut(self, source: Process, target: Process) -> bool:
        """Return True if nothing passes in this direction."""
        return (source.place, target.place) in self._cuts

    def cut(self, source: str, target: str) -> None:
        """Let nothing pass between two places in one direction."""
        self._cuts[source, target] = self.loop.time()
        self.may_be_gone()

    def heal(self) -> None:
        """Mend every cut; what was held up arrives."""
        self._cuts.clear()
        self._healed.set()
        self._healed = asyncio.Event()
        for call in list(self._calls):
            for _ in range(call.held):
                self._deliver(call)
            call.held = 0
            if call.silent_since_s is not None:
                call.lose("service unreachable: Connection reset by peer")

    def may_be_gone(self) -> None:
        """Look at the connections again when keepalive would give them up."""
        self.loop.call_later(KEEPALIVE_S, self._give_up)

    def _give_up(self) -> None:
        for call in list(self._calls):
            if self._silent_s(call) >= KEEPALIVE_S - 1e-6:
                call.lose("service unreachable: keepalive watchdog timeout")

    def _silent_s(self, call: _Call) -> float:
        now_s, ends = self.loop.time(), (call.source, call.target)
        places = [(ends[0].place, ends[1].place), (ends[1].place, ends[0].place)]
        begins = [self._cuts[pair] for pair in places if pair in self._cuts]
        begins += [
            since_s for since_s in (*(end.paused_since_s for end in ends), call.silent_since_s) if since_s is not None
        ]
        return now_s - min(begins) if begins else 0.0

    def died(self, process: Process) -> None:
        """Reset the connections of a process; a caller behind a cut hears of it by keepalive only."""
        for call in list(self._calls):
            if process not in (call.source, call.target):
                continue
            other = call.target if call.source is process else call.source
            if self.is_cut(process, other):
                call.silent_since_s = self.loop.time()
                self.may_be_gone()
            else:
                self.loop.call_later(self._delay_s(), call.lose, "service unreachable: Socket closed")

    def _delay_s(self) -> float:
        delay_s = self._random.uniform(*DELAY_S)
        while self.loss and self._random.random() < self.loss:
            delay_s += RESENT_S
        return delay_s

    async def _reach(self, source: Process, target: Process) -> None:
        """Send the request.

        Raises:
            ModelUnavailable: no connection.
        """
        until_s = self.loop.time() + KEEPALIVE_S
        await asyncio.sleep(self._delay_s())
        self.events += 1
        while self.is_cut(source, target) or self.is_cut(target, source) or target.paused:
            left_s = until_s - self.loop.time()
            try:
                async with asyncio.timeout(left_s):
                    await (target.awake() if target.paused else self._healed.wait())
            except TimeoutError:
                raise ModelUnavailable("service unreachable: timed out") from None
        if not target.alive:
            raise ModelUnavailable("service unreachable: Connection refused")

    async def carry(self, source: Process, target: Process) -> None:
        """Wait as long as a message of an open connection takes; behind a cut until that is mended."""
        await asyncio.sleep(self._delay_s())
        while self.is_cut(source, target):
            await self._healed.wait()
        await target.awake()
        self.events += 1

    async def stream(
        self, source: Process, target: Process, serve: Callable[[], AsyncIterator[Message]]
    ) -> AsyncGenerator[Message, None]:
        """Call a server that streams; leaving the iteration cancels the call there.

        Raises:
            PunaError: as the server raised it; ModelUnavailable where the connection ends.
        """
        call = _Call(source, target)
        # What was sent arrives although its sender has turned away: a stopped leader's command, too.
        sending = self.loop.create_task(self._begin(call, serve), name="request")
        try:
            await asyncio.shield(sending)
        except asyncio.CancelledError:
            sending.add_done_callback(lambda _: self._abandon(call, sending))
            self._sending[sending] = None
            raise
        try:
            while True:
                await source.awake()
                item = await self._next(call)
                if isinstance(item, PunaError):
                    raise item
                if item is _END:
                    return
                yield item  # type: ignore[misc]  # what the server has sent
        finally:
            del self._calls[call]
            if not call.lost and call.pump is not None and not call.pump.done():
                target.spawn(self._hang_up(call), "hang-up")

    async def _begin(self, call: _Call, serve: Callable[[], AsyncIterator[Message]]) -> None:
        await self._reach(call.source, call.target)
        self._calls[call] = None
        call.pump = call.target.spawn(self._pump(call, serve()), "serves")

    def _abandon(self, call: _Call, sending: "asyncio.Task[None]") -> None:
        """End a call whose caller left before it began."""
        self._sending.pop(sending, None)
        if sending.cancelled() or sending.exception() is not None:
            return
        del self._calls[call]
        call.target.spawn(self._hang_up(call), "hang-up")

    async def ask(
        self, source: Process, target: Process, answer: Callable[[], Awaitable[Message]], *, timeout_s: float
    ) -> Message:
        """Make a call with one answer.

        Raises:
            PunaError: as the server raised it; ModelUnavailable without an answer in time.
        """

        async def serve() -> AsyncIterator[Message]:
            yield await answer()

        try:
            async with asyncio.timeout(timeout_s), closing(self.stream(source, target, serve)) as answers:
                return await anext(answers)
        except TimeoutError:
            raise ModelUnavailable(f"service unreachable: no answer in {timeout_s} s") from None

    async def _next(self, call: _Call) -> object:
        while not call.arrived:
            if call.lost:
                raise ModelUnavailable(call.lost)
            call.news.clear()
            await call.news.wait()
        call.room.set()
        return call.arrived.popleft()

    async def _pump(self, call: _Call, events: AsyncIterator[object]) -> None:
        last: object = _END
        try:
            async with closing(events) as source:
                async for event in source:
                    await self._send(call, event)
        except PunaError as error:
            last = error
        await self._send(call, last)

    async def _send(self, call: _Call, item: object) -> None:
        await call.target.awake()
        while len(call.arrived) + len(call.under_way) >= WINDOW:
            call.room.clear()
            await call.room.wait()
        call.under_way.append(item)
        call.last_at_s = max(call.last_at_s, self.loop.time() + self._delay_s())
        self.loop.call_at(call.last_at_s, self._deliver, call)

    def _deliver(self, call: _Call) -> None:
        if self.is_cut(call.target, call.source):
            call.held += 1
            return
        self.events += 1
        call.arrived.append(call.under_way.popleft())
        call.news.set()

    async def _hang_up(self, call: _Call) -> None:
        """Cancel the call at its server; behind a cut the server notices by keepalive."""
        await asyncio.sleep(self._delay_s())
        while self.is_cut(call.source, call.target):
            try:
                async with asyncio.timeout(KEEPALIVE_S):
                    await self._healed.wait()
            except TimeoutError:
                break
        await call.target.awake()
        if call.pump is not None:
            call.pump.cancel()

"""One task owns the core: one event in, its effects out, in order. Nothing here waits for an effect."""

import asyncio
from collections.abc import Callable, Iterator

from common.clock import Clock
from common.seen_inventory import SeenInventory
from common.telemetry.collector import Collector
from common.telemetry.metrics import Sample
from scheduler import metrics
from scheduler.converters import KnownNodes
from scheduler.core.state.effects import Effect
from scheduler.core.state.events import Event, InventorySeen, LeadershipGained, TimePassed
from scheduler.core.state_machine import SchedulerCore
from scheduler.leadership import Leadership
from scheduler.routes import RouteBoard

EVENTS_MAX = 4096
# An event loop cannot wait for ever ("inf" is a valid load timeout); looking once an hour costs nothing.
WAIT_S_MAX = 3600.0


class CoreLoop:
    """The core and its queue of events."""

    def __init__(
        self, core: SchedulerCore, clock: Clock, board: RouteBoard, collector: Collector | None = None
    ) -> None:
        """`collector` runs when the loop is idle; None: Python collects cycles at any time."""
        self._core = core
        self._clock = clock
        self._board = board
        self._events: asyncio.Queue[Event | None] = asyncio.Queue(maxsize=EVENTS_MAX)
        self._inventory: SeenInventory | None = None
        self._inventory_at_s: float | None = None
        self._nodes = KnownNodes()
        self._collector = collector
        self._posts: set[asyncio.Task[None]] = set()

    async def post(self, event: Event) -> None:
        """Hand an event to the core; waits while the queue is full."""
        await self._events.put(event)

    def post_soon(self, event: Event) -> None:
        """Queue an event from code that cannot wait."""
        try:
            self._events.put_nowait(event)
        except asyncio.QueueFull:
            task = asyncio.create_task(self._events.put(event))
            self._posts.add(task)
            task.add_done_callback(self._posts.discard)

    async def post_inventory(self, inventory: SeenInventory) -> None:
        """Replace an inventory that has not been handled by a newer one."""
        waiting = self._inventory is not None
        self._inventory = inventory
        if not waiting:
            await self._events.put(None)

    async def run(self, perform: Callable[[Effect], None], term: Leadership) -> None:
        """Handle events until cancelled. A bug in the core ends the process: hosts and store rebuild its state.

        The term is looked at before every event: nothing is taken on by a leader whose time is up.
        """
        while True:
            event = await self._next()
            if (lost := term.lapse()) is not None:
                self._handle(lost, perform)
            if isinstance(event, LeadershipGained) and not term.may_act(event.fence):
                continue  # it was over before the core heard of it
            self._handle(event, perform)
            metrics.EVENT_QUEUE.set(self._events.qsize())
            metrics.LOADS_RUNNING.set(len(self._core.state.jobs))
            if isinstance(event, InventorySeen):
                self._collect()

    def _handle(self, event: Event, perform: Callable[[Effect], None]) -> None:
        now_s = self._clock.now_s()
        effects = self._core.handle(event, now_s)
        metrics.EVENT_SECONDS.observe(self._clock.now_s() - now_s)
        for effect in effects:
            perform(effect)

    async def _next(self) -> Event:
        now_s = self._clock.now_s()
        wake_at_s = self._core.wake_at_s(now_s)
        wait_s = WAIT_S_MAX if wake_at_s is None else min(wake_at_s - now_s, WAIT_S_MAX)
        try:
            async with asyncio.timeout(wait_s):
                event = await self._events.get()
        except TimeoutError:
            return TimePassed()
        if event is not None:
            return event
        inventory, self._inventory = self._inventory, None
        assert inventory is not None, "announced when it was put there"
        self._inventory_at_s = self._clock.now_s()
        self._board.see_inventory(inventory)
        nodes, silent = self._nodes.views(inventory)
        uptime_s, removed = inventory.uptime_ms / 1000, inventory.removed_node_ids
        return InventorySeen(nodes=nodes, uptime_s=uptime_s, silent=silent, removed=removed)

    def _collect(self) -> None:
        """Collect garbage if it is due. Called with every inventory: a cluster has two a second."""
        now_s, is_idle = self._clock.now_s(), self._events.empty() and not self._core.state.jobs
        if self._collector is not None and self._collector.due(now_s, idle=is_idle):
            self._collector.collect(now_s)

    def inventory_age(self) -> Iterator[Sample]:
        """Yield the age of the newest inventory for the Prometheus page; nothing before the first."""
        if self._inventory_at_s is not None:
            yield Sample(metrics.INVENTORY_AGE, self._clock.now_s() - self._inventory_at_s)

"""Notices that cards may have come or gone, and then compares: lists that cost nothing to read, before and now.

Messages of the kernel, the end of a sleep, errors of runners and the clock only ask for the comparison.
"""

import asyncio
from collections.abc import Callable, Mapping

from common.telemetry.logs import get_logger
from runner.core.devices.card_lists import CardChanges, compare_cards
from runner.host.devices.pci_cards import read_pci_cards
from runner.host.devices.uevents import OpenSocket, hearing, open_uevents
from runner.host.runners.suspend import SleepWatch

log = get_logger()

# A driver that comes up sends many messages; a moment after the first one there is more to see.
SETTLE_S = 0.5


class HotPlug:
    """`reprobe_s`: how often it compares unasked. `read` lists the cards of the bus."""

    def __init__(
        self,
        *,
        reprobe_s: float,
        read: Callable[[], Mapping[str, str]] = read_pci_cards,
        open_socket: OpenSocket = open_uevents,
        sleep_watch: SleepWatch | None = None,
    ) -> None:
        self._reprobe_s = reprobe_s
        self._read = read
        self._open_socket = open_socket
        self._sleep_watch = sleep_watch or SleepWatch()
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Compare soon."""
        self._asked.set()

    def woke_up(self) -> bool:
        """Whether the machine slept since the last look; then there is a comparison, too."""
        woke = self._sleep_watch.woke_up()
        if woke:
            self.ask()
        return woke

    async def watch(self, compared: Callable[[CardChanges], None]) -> None:
        """Tell the outcome of every comparison; runs for ever."""
        with hearing(self.ask, open_socket=self._open_socket):
            before = await asyncio.to_thread(self._read)
            while True:
                await self._wait()
                now = await asyncio.to_thread(self._read)
                changes, before = compare_cards(before, now), now
                if changes:
                    fields = {name: sorted(getattr(changes, name)) for name in ("came", "gone", "changed")}
                    log.warning("devices.changed", **fields)
                compared(changes)

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._reprobe_s):
                await self._asked.wait()
        except TimeoutError:
            return
        await asyncio.sleep(min(SETTLE_S, self._reprobe_s))
        self._asked.clear()

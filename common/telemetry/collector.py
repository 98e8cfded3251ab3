"""Python's search for cycles, where a service holds hundreds of thousands of values and must answer in milliseconds.

By itself Python walks over everything that is alive whenever enough was made since, which is in the middle of a
decision that makes a lot. Young values are still looked through by themselves; all of them only when the owner of the
values has nothing else to do, and at the latest after `LATEST_S`.
"""

import asyncio
import contextlib
import gc

YOUNG_MAX = 100_000  # made since the last look: most decisions make fewer
NEVER = 1_000_000_000
WISHED_S = 30.0
LATEST_S = 600.0
# Where little lives: new objects between two looks at the young ones, and how many of those before older ones are
# looked at. By these, looks at the oldest are hours apart: memory of runners that have ended would grow like a leak.
THRESHOLDS = (20_000, 20, 20)


class Collector:
    """Owned by one loop, which says when it is idle."""

    def __init__(self, now_s: float) -> None:
        """From here on nothing walks over everything by itself."""
        gc.collect()
        gc.freeze()  # modules and classes live as long as the process
        gc.set_threshold(YOUNG_MAX, NEVER, NEVER)
        self._collected_s = now_s

    def due(self, now_s: float, *, idle: bool) -> bool:
        """Return True if the next full collection may run now."""
        return now_s >= self._collected_s + (WISHED_S if idle else LATEST_S)

    def collect(self, now_s: float) -> None:
        """Look through everything."""
        gc.collect()
        self._collected_s = now_s


async def collect_garbage(stop: asyncio.Event, every_s: float = WISHED_S) -> None:
    """Freeze the objects made at start, which Python would scan again and again, and look through the rest at times.

    What lives then belongs to requests, so that a look takes a few milliseconds under load. Returns after `stop`.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    while not stop.is_set():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(every_s):
                await stop.wait()
        gc.collect()

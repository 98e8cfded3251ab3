"""Wake many waiters when something changed, without queues: a slow one skips versions and sees the newest state."""

import asyncio


class Changes:
    """A counter that can be waited on. One owner calls `notify`; any task may wait."""

    def __init__(self) -> None:
        self.version = 0
        self._next = asyncio.Event()

    def notify(self) -> None:
        """Count one change and wake every waiter."""
        self.version += 1
        woken, self._next = self._next, asyncio.Event()
        woken.set()

    async def beyond(self, version: int) -> int:
        """Wait until the counter has passed `version`; return where it is now."""
        while self.version <= version:
            await self._next.wait()
        return self.version

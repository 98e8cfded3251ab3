"""A zygote of the test's own process, from which its runners are forked."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from runner.host.processes import zygote as zygotes
from runner.host.processes.zygote import Zygote, use_zygote

READY_S = 120.0


@asynccontextmanager
async def running_zygote(directory: Path) -> AsyncIterator[Zygote]:
    """Fork what this process starts, while the context is open."""
    zygote = Zygote(directory / "zygote.log")
    use_zygote(zygote)
    living = asyncio.create_task(zygote.run())
    try:
        await asyncio.wait_for(zygote.ready.wait(), READY_S)
        yield zygote
    finally:
        living.cancel()
        await asyncio.gather(living, return_exceptions=True)
        zygotes._in_use.clear()

"""A discovery that hangs is noticed by those who watch it: process and connection are there, and nothing comes."""

import asyncio
import os
import signal
from pathlib import Path

from common.model_details import KeptDetails
from discovery.client import watch_changes
from tests.integration.host.node import start_discovery
from tests.waiting import Stopwatch, until

NOTICED_S_MAX = 4.0  # 2.5 on an idle machine


async def test_a_watcher_knows_within_seconds_and_goes_on_when_it_wakes(tmp_path: Path) -> None:
    discovery = await start_discovery(tmp_path)
    address = (await discovery.event("discovery.ready"))["address"]
    connections: list[bool] = []

    async def watch() -> None:
        async for _ in watch_changes(address, on_connection=connections.append, details=KeptDetails()):
            pass

    watching = asyncio.create_task(watch())
    try:
        await until(lambda: connections[-1:] == [True], what="it is watched")
        os.kill(discovery.process.pid, signal.SIGSTOP)
        stopwatch = Stopwatch()
        await until(lambda: not connections[-1], what="the watcher knows")
        noticed_s = stopwatch.wall_s
        os.kill(discovery.process.pid, signal.SIGCONT)
        await until(lambda: connections[-1], what="it is watched again")
        stopwatch.assert_within(NOTICED_S_MAX, "the watcher knows", took_s=noticed_s)
    finally:
        watching.cancel()
        os.kill(discovery.process.pid, signal.SIGCONT)
        assert await discovery.end() == 0

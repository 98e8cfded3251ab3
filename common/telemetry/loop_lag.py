"""Lag of an event loop: a delay of a tenth of a second delays every stream."""

import asyncio

from common.telemetry.metrics import LOOP_LAG

# Short against what people notice, long against what it costs.
LOOK_INTERVAL_S = 0.2


async def watch_loop(interval_s: float = LOOK_INTERVAL_S) -> None:
    """Measure the running loop; runs for ever."""
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + interval_s
        await asyncio.sleep(interval_s)
        LOOP_LAG.observe(max(0.0, loop.time() - due_s))

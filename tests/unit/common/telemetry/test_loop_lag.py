"""Delays of an event loop are measured."""

import asyncio
import contextlib
import time

from prometheus_client import REGISTRY

from common.service import watch_loop


def seen_s() -> float:
    return REGISTRY.get_sample_value("puna_event_loop_lag_seconds_sum") or 0.0


async def test_a_loop_that_is_held_up_shows_how_long() -> None:
    watching = asyncio.create_task(watch_loop(0.01))
    await asyncio.wait({watching}, timeout=0.05)  # it has begun
    before_s, until_s = seen_s(), time.monotonic() + 0.2
    while time.monotonic() < until_s:
        pass  # somebody parses a large body
    await asyncio.wait({watching}, timeout=0.05)
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    assert seen_s() - before_s >= 0.15

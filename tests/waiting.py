"""Wait for conditions, never for time: every wait ends as soon as the condition holds and fails at its deadline."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable

POLL_S = 0.02


def wait_until(condition: Callable[[], bool], *, deadline_s: float, what: str) -> None:
    """Return once the condition holds; fail with `what` when it does not within the deadline."""
    pause = threading.Event()
    end_s = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end_s, f"not within {deadline_s} s: {what}"
        pause.wait(POLL_S)


async def until(condition: Callable[[], bool], *, deadline_s: float = 10.0, what: str) -> None:
    """As `wait_until`, while the event loop runs on."""
    end_s = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end_s, f"not within {deadline_s} s: {what}"
        await next_look()


async def next_look(after_s: float = POLL_S) -> None:
    """The interval between two looks at something that cannot tell by itself that it changed."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(after_s):
            await asyncio.Event().wait()

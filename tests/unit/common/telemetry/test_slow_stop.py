"""A service that does not stop says what it waits for."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from common import service


class Log:
    """Notes what is logged."""

    def __init__(self) -> None:
        self.lines: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def warning(self, event: str, **values: Any) -> None:
        self.lines.put_nowait({"event": event, **values})


@contextlib.asynccontextmanager
async def held(released: asyncio.Event) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await drain(released)


async def drain(released: asyncio.Event) -> None:
    await released.wait()


async def serve(stop: asyncio.Event, released: asyncio.Event) -> None:
    async with held(released):
        await stop.wait()


async def test_what_a_stop_waits_for_is_logged_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    log, stop, released = Log(), asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(service, "log", log)
    watching = asyncio.create_task(service.watch_stop(stop, 0.01))
    serving = asyncio.create_task(serve(stop, released), name="service")
    await asyncio.sleep(0)
    stop.set()
    first, second = await log.lines.get(), await log.lines.get()
    released.set()
    await serving
    watching.cancel()

    (place,) = [wait for wait in first["waits"] if wait.startswith("service: ")]
    places = [one.rsplit(":", 1)[0].strip() for one in place.removeprefix("service: ").split(" > ")]
    assert places[0] == "test_slow_stop.serve"
    assert places[-3:] == ["test_slow_stop.held", "test_slow_stop.drain", "locks.wait"]
    assert first["event"] == "service.stops_slowly"
    assert first["after_s"] <= second["after_s"]

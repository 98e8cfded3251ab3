"""Streams of events that can be ended, and choices side by side."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from common.errors import InternalError, RunnerLost, ShuttingDown
from gateway.answers.choices import ChoiceEvent, merge_choices
from gateway.answers.feed import Feed
from gateway.core.request.answers import AnswerEvent, Delta


async def numbers(count: int, error: Exception | None = None) -> AsyncIterator[int]:
    for number in range(count):
        yield number
    if error is not None:
        raise error


class Endless:
    """Yields for ever; remembers that it was closed."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()
        self.yielded = 0

    async def run(self, then_hang: bool = False) -> AsyncIterator[int]:
        try:
            while True:
                self.yielded += 1
                yield self.yielded
                if then_hang:
                    await asyncio.Event().wait()
        finally:
            self.closed.set()


async def test_events_come_in_order_and_end() -> None:
    async with Feed(numbers(3), set()) as feed:
        assert [event async for event in feed] == [0, 1, 2]


async def test_an_error_comes_after_the_events_before_it() -> None:
    async with Feed(numbers(2, RunnerLost("gone")), set()) as feed:
        assert [await anext(feed), await anext(feed)] == [0, 1]
        with pytest.raises(RunnerLost):
            await anext(feed)


async def test_leaving_early_closes_the_source_before_it_returns() -> None:
    source = Endless()
    feeds: set[Feed[Any]] = set()
    async with Feed(source.run(), feeds) as feed:
        assert await anext(feed) == 1
        assert feeds == {feed}
    assert source.closed.is_set()
    assert feeds == set()


async def test_nothing_is_read_ahead_of_the_reader() -> None:
    source = Endless()
    async with Feed(source.run(), set()) as feed:
        assert await anext(feed) == 1
        await asyncio.sleep(0)
        assert source.yielded == 1


async def test_ending_from_outside_gives_the_error_to_a_reader_that_waits() -> None:
    source = Endless()
    async with Feed(source.run(then_hang=True), set()) as feed:
        assert await anext(feed) == 1
        asyncio.get_running_loop().call_soon(feed.end_with, ShuttingDown("draining"))
        with pytest.raises(ShuttingDown):
            await anext(feed)
        assert source.closed.is_set()
        await asyncio.sleep(0)  # the reader itself is not cancelled


async def test_ending_from_outside_gives_the_error_to_a_reader_that_comes_later() -> None:
    async with Feed(numbers(3), set()) as feed:
        assert await anext(feed) == 0
        feed.end_with(ShuttingDown("draining"))
        with pytest.raises(ShuttingDown):
            await anext(feed)


@pytest.mark.parametrize("ended_first", [True, False])
async def test_a_reader_that_is_cancelled_as_well_stays_cancelled(ended_first: bool) -> None:
    async with Feed(Endless().run(then_hang=True), set()) as feed:
        assert await anext(feed) == 1

        async def read() -> int:
            return await anext(feed)

        reading = asyncio.create_task(read())
        await asyncio.sleep(0)
        if ended_first:
            feed.end_with(ShuttingDown("draining"))
        reading.cancel()
        if not ended_first:
            feed.end_with(ShuttingDown("draining"))
        with pytest.raises(asyncio.CancelledError):
            await reading


async def test_work_that_cancels_itself_does_not_cancel_its_reader() -> None:
    """As gRPC does with a call whose requests raise."""

    async def broken() -> AsyncIterator[int]:
        yield 1
        raise asyncio.CancelledError

    async with Feed(broken(), set()) as feed:
        assert await anext(feed) == 1
        with pytest.raises(InternalError):
            await anext(feed)


async def text(content: str, error: Exception | None = None) -> AsyncIterator[AnswerEvent]:
    for letter in content:
        yield Delta(content=letter)
    if error is not None:
        raise error


async def test_choices_interleave_and_each_keeps_its_order() -> None:
    events = [event async for event in merge_choices([text("abc"), text("xyz"), text("")])]
    for index, expected in enumerate(("abc", "xyz", "")):
        own = [item.event for item in events if item.index == index]
        assert "".join(event.content for event in own if isinstance(event, Delta)) == expected
    assert all(isinstance(event, ChoiceEvent) for event in events)


async def test_the_first_failure_ends_every_choice() -> None:
    source = Endless()

    async def endless() -> AsyncIterator[AnswerEvent]:
        async for _ in source.run():
            yield Delta(content="x")

    with pytest.raises(RunnerLost):
        async for _ in merge_choices([endless(), text("a", RunnerLost("gone"))]):
            pass
    await asyncio.wait_for(source.closed.wait(), 5)

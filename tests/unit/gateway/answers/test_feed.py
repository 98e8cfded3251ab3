"""Answers in tasks of their own."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from common.errors import InternalError, RunnerLost, ShuttingDown
from gateway.answers.choices import ChoiceEvent, merge_choices
from gateway.answers.feed import BUFFERED_MAX, END, EndOfFeed, Feed
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
        assert [await feed.next(), await feed.next()] == [0, 1]
        with pytest.raises(RunnerLost):
            await feed.next()


async def test_a_batch_holds_what_is_there_and_the_end_comes_on_its_own() -> None:
    async with Feed(numbers(5), set()) as feed:
        seen: list[int] = []
        while not isinstance(batch := await feed.next_batch(), EndOfFeed):
            assert batch
            seen += batch
    assert seen == [0, 1, 2, 3, 4]


async def test_a_batch_that_is_the_last_is_known_as_such_before_the_end_is_read() -> None:
    async with Feed(numbers(2), set()) as feed:
        assert [feed.is_over, await feed.next_batch(), feed.is_over] == [False, [0, 1], True]
        assert await feed.next_batch() is END
    async with Feed(numbers(1, RunnerLost("gone")), set()) as broken:
        assert await broken.next_batch() == [0]
        assert not broken.is_over  # an error is not the end that a stream says


async def test_an_error_behind_a_batch_is_raised_after_it() -> None:
    async with Feed(numbers(2, RunnerLost("gone")), set()) as feed:
        assert await feed.next() == 0
        assert await feed.next_batch() == [1]  # the error waits behind it
        with pytest.raises(RunnerLost):
            await feed.next_batch()


async def test_nothing_in_time_is_a_timeout_and_the_stream_goes_on() -> None:
    gate = asyncio.Event()

    async def late() -> AsyncIterator[int]:
        await gate.wait()
        yield 1

    async with Feed(late(), set()) as feed:
        with pytest.raises(TimeoutError):
            await feed.next(0.01)
        gate.set()
        assert await feed.next(5) == 1
        assert await feed.next(5) is END


async def test_leaving_early_closes_the_source_before_it_returns() -> None:
    source = Endless()
    feeds: set[Feed[Any]] = set()
    async with Feed(source.run(), feeds) as feed:
        assert await feed.next() == 1
        assert feeds == {feed}
    assert source.closed.is_set()
    assert feeds == set()


async def test_a_reader_that_does_not_read_holds_up_the_source() -> None:
    source = Endless()
    async with Feed(source.run(), set()) as feed:
        await feed.next()
        for _ in range(BUFFERED_MAX * 3):
            looked = asyncio.Event()
            asyncio.get_running_loop().call_soon(looked.set)
            await looked.wait()
        assert source.yielded <= BUFFERED_MAX + 2


async def test_ending_from_outside_gives_the_reader_the_error() -> None:
    source = Endless()
    async with Feed(source.run(then_hang=True), set()) as feed:
        assert await feed.next() == 1
        feed.end_with(ShuttingDown("draining"))
        with pytest.raises(ShuttingDown):
            await feed.next(5)
    assert source.closed.is_set()


async def test_work_that_cancels_itself_does_not_leave_its_reader_waiting() -> None:
    """As gRPC does with a call whose requests raise."""

    async def broken() -> AsyncIterator[int]:
        yield 1
        raise asyncio.CancelledError

    async with Feed(broken(), set()) as feed:
        assert await feed.next(5) == 1
        with pytest.raises(InternalError):
            await feed.next(5)


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

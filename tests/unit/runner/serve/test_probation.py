"""The place of the only request on probation."""

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from common.errors import QueueFull
from runner.serve.streams import PROBATION_CALLERS_MAX, ProbationPlace
from tests.waiting import next_look


async def begun(place: ProbationPlace, order: list[str], name: str) -> "asyncio.Task[None]":
    """Make a call that holds the place once it has it; it waits when this returns."""

    async def call() -> None:
        calls: Any = place.hold()
        async with aclosing(calls) as grants:
            await anext(grants)
            order.append(name)
            await anext(grants)

    task = asyncio.create_task(call())
    await next_look(0)
    return task


async def test_callers_get_the_place_one_after_the_other_in_the_order_of_their_calls() -> None:
    place, order = ProbationPlace(), list[str]()
    first, second, third = [await begun(place, order, name) for name in ("first", "second", "third")]
    assert order == ["first"]
    second.cancel()  # leaves while it waits
    first.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    await next_look(0)
    assert order == ["first", "third"]
    third.cancel()


async def test_a_crowd_is_refused_until_a_caller_has_left() -> None:
    place, order = ProbationPlace(), list[str]()
    calls = [await begun(place, order, str(number)) for number in range(PROBATION_CALLERS_MAX)]
    with pytest.raises(QueueFull):
        await anext(place.hold())
    calls.pop().cancel()
    await next_look(0)
    one_more = await begun(place, order, "one more")
    assert not one_more.done()
    for call in (*calls, one_more):
        call.cancel()

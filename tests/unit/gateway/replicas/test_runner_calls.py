"""Silence of calls to a replica."""

import asyncio
from collections.abc import AsyncIterator

from gateway.core.dispatch.resume import STALL_UNKNOWN_S
from gateway.replicas.runner_calls import OpenCalls, RunnerCall


async def test_the_silence_of_a_paused_answer_is_no_stall_and_teaches_nothing() -> None:
    calls, events = OpenCalls(), asyncio.Queue[str]()

    async def stream() -> AsyncIterator[str]:
        while True:
            yield await events.get()

    async def next_of(call: RunnerCall[str]) -> str:
        reading = asyncio.ensure_future(anext(call))
        await asyncio.sleep(0)
        later_s = asyncio.get_running_loop().time() + 10 * STALL_UNKNOWN_S
        silences.append(call.silent_s(later_s) > STALL_UNKNOWN_S)
        events.put_nowait("event")
        return await reading

    silences: list[bool] = []
    async with RunnerCall(stream(), calls) as call:
        await next_of(call)
        call.is_paused = True
        await next_of(call)
        assert calls.average_gap_s is None
        call.is_paused = False
        await next_of(call)
    assert silences == [True, False, True]
    assert calls.average_gap_s is not None

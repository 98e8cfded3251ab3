"""A cancellation that comes while a command is written is not lost."""

import asyncio

import pytest

from common.redis.client import answer_within


async def started(timeout_s: float, written: asyncio.Future[str]) -> "asyncio.Task[str]":
    """Return a task that waits for a command as redis-py does."""
    task = asyncio.create_task(answer_within(lambda: asyncio.wait_for(written, 60.0), timeout_s))
    await asyncio.sleep(0)
    return task


async def test_a_command_that_was_just_written_when_its_task_is_cancelled_ends_the_task() -> None:
    written: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = await started(60.0, written)
    written.set_result("answer")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_a_command_without_an_answer_ends_in_time() -> None:
    task = await started(0.01, asyncio.get_running_loop().create_future())
    with pytest.raises(TimeoutError):
        await task


async def test_a_task_that_was_cancelled_before_still_gets_an_answer() -> None:
    """Commands at the end of a task are answered, too."""

    async def command() -> str:
        await asyncio.sleep(0)
        return "answer"

    async def at_the_end() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            return await answer_within(command, 60.0)  # noqa: B012

    task = asyncio.create_task(at_the_end())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "answer"

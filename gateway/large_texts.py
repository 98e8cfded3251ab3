"""Work on large texts, beside the event loop: one piece at a time, so that the loop contends with one thread only."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

# Work on a shorter text takes less time than two changes of threads are late.
INLINE_CHARACTERS = 64 * 1024
# Least count of a value, however short it is.
_CHARACTERS_PER_VALUE = 16
_THREAD = ThreadPoolExecutor(max_workers=1, thread_name_prefix="large-texts")

Result = TypeVar("Result")


async def beside_loop(characters: float, work: Callable[[], Result]) -> Result:
    """Return what `work` returns. It blocks the loop only if its text is short."""
    if characters <= INLINE_CHARACTERS:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_THREAD, work)


def count_characters(value: object) -> int:
    """Count the characters of all strings in a JSON value, or more than `INLINE_CHARACTERS` of them."""
    count = 0
    found: list[object] = [value]
    while found and count <= INLINE_CHARACTERS:
        one = found.pop()
        count += _CHARACTERS_PER_VALUE
        if isinstance(one, str):
            count += len(one)
        elif isinstance(one, list | tuple):
            found += one
        elif isinstance(one, dict | Mapping):
            found += one.values()
    return count

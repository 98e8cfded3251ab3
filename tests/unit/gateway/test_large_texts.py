"""Work on large texts leaves the event loop."""

import threading

from gateway.large_texts import INLINE_CHARACTERS, beside_loop, count_characters


async def test_work_on_long_texts_runs_in_one_thread_beside_the_loop() -> None:
    async def name_at(characters: int) -> str:
        return await beside_loop(characters, lambda: threading.current_thread().name)

    assert await name_at(INLINE_CHARACTERS) == threading.current_thread().name
    first = await name_at(INLINE_CHARACTERS + 1)
    assert first != threading.current_thread().name
    assert await name_at(INLINE_CHARACTERS + 1) == first


def test_characters_are_counted_in_every_value_until_they_are_many() -> None:
    assert count_characters(["abc", ("de", {"k": "f"}), 7, None]) >= 6
    assert count_characters({"a": [["x" * (INLINE_CHARACTERS // 2)] * 3]}) > INLINE_CHARACTERS
    assert count_characters(["x"] * 10) < 300

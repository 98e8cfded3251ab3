"""Several answers to one request, side by side: `n`, and lists of prompts."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from common.closing import closing
from gateway.core.request.answers import AnswerEvent

_BUFFERED_MAX = 64


@dataclass(frozen=True, slots=True)
class ChoiceEvent:
    """An event of one of the answers."""

    index: int
    event: AnswerEvent


def merge_choices(answers: Sequence[AsyncIterator[AnswerEvent]]) -> AsyncIterator[ChoiceEvent]:
    """Merge the events of all answers as they come. The first failure ends all of them and is raised."""
    # Most requests want one answer: nothing to merge, so no task, no buffer and no generator either.
    return _OnlyChoice(answers[0]) if len(answers) == 1 else _merged(answers)


class _OnlyChoice(AsyncIterator[ChoiceEvent]):
    """The events of the only answer."""

    __slots__ = ("_answer",)

    def __init__(self, answer: AsyncIterator[AnswerEvent]) -> None:
        self._answer = answer

    async def __anext__(self) -> ChoiceEvent:
        return ChoiceEvent(0, await self._answer.__anext__())

    async def aclose(self) -> None:
        async with closing(self._answer):
            pass


async def _merged(answers: Sequence[AsyncIterator[AnswerEvent]]) -> AsyncIterator[ChoiceEvent]:
    # Bounded per answer, not as a whole: a quick one must not keep the others out of the buffer.
    buffer: asyncio.Queue[ChoiceEvent | Exception | None] = asyncio.Queue()
    places = [asyncio.Semaphore(_BUFFERED_MAX) for _ in answers]

    async def pump(index: int, answer: AsyncIterator[AnswerEvent]) -> None:
        last: Exception | None = None
        try:
            async with closing(answer) as events:
                async for event in events:
                    await places[index].acquire()
                    buffer.put_nowait(ChoiceEvent(index, event))
        except Exception as error:  # noqa: BLE001  # carried to the reader, which raises it
            last = error
        buffer.put_nowait(last)

    tasks = [asyncio.create_task(pump(index, answer), name="choice") for index, answer in enumerate(answers)]
    running = len(tasks)
    try:
        while running:
            match await buffer.get():
                case None:
                    running -= 1
                case Exception() as error:
                    raise error
                case ChoiceEvent(index=index) as event:
                    places[index].release()
                    yield event
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

"""One loop for streams that are opened again whenever they end, for as long as the caller listens."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from common.errors import PunaError

Message = TypeVar("Message")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Longest pauses between streams: doubled from `first_s` to `max_s`, and from `first_s` again after a message.

    A pause is random up to that length, so that a restarted server does not meet all of its clients at once.
    """

    first_s: float = 0.1
    max_s: float = 2.0


async def watch(
    open_stream: Callable[[], AsyncGenerator[Message, None]],
    *,
    on_lost: Callable[[PunaError | None, int], None],
    on_connection: Callable[[bool], None] = lambda _connected: None,
    backoff: Backoff = Backoff(),  # frozen
) -> AsyncGenerator[Message, None]:
    """Yield the messages of a stream and of those that follow it; ends only when the caller closes it.

    `on_lost` gets the error that ended a stream, None where the server ended it, and the number of errors since the
    last message: 1 marks a new outage. What it raises ends the watch.
    `on_connection` gets True with the first message of a stream, and False when that stream ends or is closed.
    """
    pause_s, failures = backoff.first_s, 0
    while True:
        error, is_connected = None, False
        try:
            async with aclosing(open_stream()) as messages:
                async for message in messages:
                    pause_s, failures = backoff.first_s, 0
                    if not is_connected:
                        is_connected = True
                        on_connection(True)
                    yield message
        except PunaError as caught:
            error = caught
            failures += 1
        finally:
            if is_connected:
                on_connection(False)
        on_lost(error, failures)
        await asyncio.sleep(random.uniform(0, pause_s))
        pause_s = min(2 * pause_s, backoff.max_s)

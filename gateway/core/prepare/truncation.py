"""Messages of a long conversation to drop: the oldest first, never system messages, never the last."""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.request.answers import Message


def droppable_indices(messages: Sequence[Message]) -> list[int]:
    """List the indices of the messages that may be dropped, in the order in which they are."""
    return [index for index, message in enumerate(messages[:-1]) if message.role != "system"]


def without_oldest(messages: Sequence[Message], drop_count: int) -> tuple[Message, ...]:
    """Drop so many messages of the conversation."""
    dropped = set(droppable_indices(messages)[:drop_count])
    return tuple(message for index, message in enumerate(messages) if index not in dropped)


@dataclass(frozen=True, slots=True)
class DropSearch:
    """The smallest number of dropped messages that fits lies in [low, high]; `high` is the last resort."""

    low: int
    high: int

    @property
    def found(self) -> bool:
        """True once only one number is left."""
        return self.low >= self.high

    @property
    def probe(self) -> int:
        """The number to try next."""
        return (self.low + self.high) // 2

    def after(self, *, fits: bool) -> "DropSearch":
        """Return the rest of the search after a probe. Fewer messages never make more tokens."""
        return DropSearch(self.low, self.probe) if fits else DropSearch(self.probe + 1, self.high)

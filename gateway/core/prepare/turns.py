"""Conversations in a form that narrower chat templates and shorter contexts take. Pure.

System text and questions in unusual places move; of a long conversation the oldest messages are dropped, never system
messages, never the last.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateway.core.request.answers import Message

_SYSTEM = "system"
# The marks that coding agents put around such text where their server takes no system messages there.
_REMINDER = "<system-reminder>\n{}\n</system-reminder>"


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


def has_later_system(messages: Sequence[Message]) -> bool:
    """Return True if a system message stands anywhere but at the very beginning."""
    return any(message.role == _SYSTEM for message in messages[1:])


def with_system_first(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Join the system messages that precede the first answer into one at the head.

    The text of later turns stays where it is, so a prefix that was evaluated before is not changed: what precedes an
    answer was there when that answer was generated.
    """
    answered = next((index for index, message in enumerate(messages) if message.role == "assistant"), len(messages))
    early = messages[:answered]
    system: Message | None = None
    for message in early:
        if message.role == _SYSTEM:
            system = message if system is None else _joined(system, message)
    others = [message for message in early if message.role != _SYSTEM]
    return (*(() if system is None else (system,)), *others, *messages[answered:])


def with_folded_system(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Leave one system message at the head; later ones become marked text of the turn before them.

    Behind an answer, where no such turn is, they begin the next question. A message that is added at the end changes
    nothing before it.
    """
    folded: list[Message] = []
    begins_question = False
    for message in with_system_first(messages):
        if message.role == _SYSTEM and folded:
            reminder = replace(message, role="user", content=_REMINDER.format(message.content))
            if folded[-1].role in ("user", "tool"):
                folded[-1] = _joined(folded[-1], reminder)
            else:
                folded.append(reminder)
                begins_question = True
        elif message.role == "user" and begins_question:
            folded[-1] = _joined(folded[-1], message)
            begins_question = False
        else:
            folded.append(message)
            begins_question = False
    return tuple(folded)


def with_questions_in_results(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Append a question that follows the result of a tool to that result, for templates that allow none there."""
    folded: list[Message] = []
    for message in messages:
        if message.role == "user" and folded and folded[-1].role == "tool":
            folded[-1] = _joined(folded[-1], message)
        else:
            folded.append(message)
    return tuple(folded)


def _joined(first: Message, second: Message) -> Message:
    """Return the first message with content and images of the second behind its own."""
    head = f"{first.content}\n\n" if first.content else ""
    moved = tuple(replace(image, offset=image.offset + len(head)) for image in second.images)
    return replace(first, content=head + second.content, images=(*first.images, *moved))

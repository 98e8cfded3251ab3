"""Read one answer: text in, in any split; events out, the same for every split but for where pieces are cut."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from gateway.core.output_parsers.events import CallArguments, CallBegan, Content, Event, Reasoning
from gateway.core.output_parsers.families import Readers
from gateway.core.output_parsers.readers import OutputReader

# A reader that neither takes text nor says anything hands on at most so often: more would be a loop of ours.
_HAND_ONS_MAX = 64


@dataclass(slots=True)
class EventParser:
    """Owns the reader of the moment and what it holds back."""

    readers: Readers
    in_reasoning: bool = False
    held: str = ""
    _reader: OutputReader = field(init=False)

    def __post_init__(self) -> None:
        self._reader = self.readers.first(in_reasoning=self.in_reasoning)

    def feed(self, text: str) -> list[Event]:
        """Feed text and return the certain events."""
        events: list[Event] = []
        self.held += text
        hand_ons = 0
        while True:
            read = self._reader.feed(self.held)
            hand_ons = 0 if len(read.rest) < len(self.held) else hand_ons + 1
            assert hand_ons <= _HAND_ONS_MAX, "readers hand on in a circle"
            events += read.events
            self.held = read.rest
            if read.next is None:
                return joined(events)
            self._reader = read.next

    def finish(self) -> list[Event]:
        """Return the held events at the end."""
        held, self.held = self.held, ""
        return joined(self._reader.finish(held))


def joined(events: Iterable[Event]) -> list[Event]:
    """Join neighbours of one kind."""
    merged: list[Event] = []
    for event in events:
        last = merged[-1] if merged else None
        match last, event:
            case Content(before), Content(after):
                merged[-1] = Content(before + after)
            case Reasoning(before), Reasoning(after):
                merged[-1] = Reasoning(before + after)
            case CallArguments(before), CallArguments(after):
                merged[-1] = CallArguments(before + after)
            case _, CallBegan():
                merged.append(event)
            case _:
                merged.append(event)
    return merged

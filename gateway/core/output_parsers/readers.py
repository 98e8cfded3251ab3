"""States within a text: prose up to a marker, a call, or the gap behind one.

A reader takes what has arrived, says what is certain, and hands the rest on: to itself once there is more text, or to
the reader that comes next. Text is never lost: text that only looked like a call becomes content.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gateway.core.output_parsers.events import CallArguments, CallBegan, Content, Event, Reasoning
from gateway.core.output_parsers.json_call import CallState, JsonCall
from gateway.core.output_parsers.json_scan import Scan, ValueScan, skip_space
from gateway.core.output_parsers.syntax import Tags

# Some models say which values are texts.
_IS_TEXT = 'string="true"'
Next = Callable[[], "OutputReader"]
HEADER_CHARS_MAX = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerMatch:
    """Text before the first marker, that marker ("" if there is none yet), and what is not decided."""

    before: str
    marker: str
    rest: str


def find_marker(text: str, markers: Sequence[str]) -> MarkerMatch:
    """Cut at the first complete marker; of several that begin at the same place the longest counts.

    Without one, `before` is what can no longer become part of a marker and `rest` the part that still can.
    """
    best = len(text)
    chosen = ""
    for marker in markers:
        index = text.find(marker)
        if index >= 0 and (index < best or (index == best and len(marker) > len(chosen))):
            best, chosen = index, marker
    held = _held_from(text, markers)
    if chosen and best <= held:
        longer = any(len(marker) > len(chosen) and marker.startswith(text[best:]) for marker in markers)
        if not longer:
            return MarkerMatch(before=text[:best], marker=chosen, rest=text[best + len(chosen) :])
        held = best
    return MarkerMatch(before=text[:held], marker="", rest=text[held:])


def _held_from(text: str, markers: Sequence[str]) -> int:
    """Return the start of the longest suffix that is a proper prefix of a marker."""
    longest = max((len(marker) for marker in markers), default=0)
    for start in range(max(0, len(text) - longest + 1), len(text)):
        if any(len(marker) > len(text) - start and marker.startswith(text[start:]) for marker in markers):
            return start
    return len(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """`next` None: the same reader goes on when more text is there; `rest` is then held back until it is."""

    events: list[Event] = field(default_factory=list)
    rest: str = ""
    next: "OutputReader | None" = None


class OutputReader(Protocol):
    """One state of a parser."""

    def feed(self, text: str) -> Read:
        """Take text."""

    def finish(self, held: str) -> list[Event]:
        """End the answer; `held` is the undecided text."""


@dataclass(slots=True)
class Prose:
    """Text of one kind, up to one of the markers in `doors`. White space behind a marker is layout, not text."""

    kind: type[Content] | type[Reasoning]
    doors: Mapping[str, Next]
    trim: bool = False

    def feed(self, text: str) -> Read:
        """See OutputReader."""
        if self.trim:
            text = skip_space(text)
            self.trim = not text
        found = find_marker(text, tuple(self.doors))
        events: list[Event] = [self.kind(found.before)] if found.before else []
        after = self.doors[found.marker]() if found.marker else None
        return Read(events=events, rest=found.rest, next=after)

    def finish(self, held: str) -> list[Event]:
        """See OutputReader."""
        return [self.kind(held)] if held else []


@dataclass(slots=True)
class Gap:
    """Behind a marker: white space, then one of `doors`, else the usual text."""

    doors: Mapping[str, Next]
    otherwise: Next

    def feed(self, text: str) -> Read:
        """See OutputReader."""
        bare = skip_space(text)
        door = _door_at(bare, self.doors)
        if door is None:
            return Read(rest=text)
        if door:
            return Read(rest=bare[len(door) :], next=self.doors[door]())
        return Read(rest=bare, next=self.otherwise())

    def finish(self, held: str) -> list[Event]:
        """See OutputReader."""
        bare = skip_space(held)
        return [Content(bare)] if bare else []


@dataclass(slots=True)
class Beginning:
    """Beginning of an answer, which decides its form. Nothing is removed, white space neither."""

    doors: Mapping[str, Next]
    otherwise: Next

    def feed(self, text: str) -> Read:
        """See OutputReader."""
        door = _door_at(skip_space(text), self.doors)
        if door is None:
            return Read(rest=text)
        return Read(rest=text, next=self.doors[door]() if door else self.otherwise())

    def finish(self, held: str) -> list[Event]:
        """See OutputReader."""
        return [Content(held)] if held else []


@dataclass(slots=True)
class Enter:
    """Takes the door that `Beginning` saw; `then` gets it with what stands before, to be given back if need be."""

    door: str
    then: Callable[[str], OutputReader]

    def feed(self, text: str) -> Read:
        """See OutputReader."""
        before, door, rest = text.partition(self.door)
        assert door, "the door was seen"
        return Read(rest=rest, next=self.then(before + door))

    def finish(self, held: str) -> list[Event]:
        """See OutputReader."""
        return [Content(held)] if held else []


def _door_at(text: str, doors: Mapping[str, Next]) -> str | None:
    """Find the door that the text begins with: "" if it is none of them, None if that is open."""
    for door in sorted(doors, key=len, reverse=True):
        if text.startswith(door):
            return door
    return None if not text or any(door.startswith(text) for door in doors) else ""


@dataclass(slots=True)
class PutBack:
    """Gives text that was taken to the next reader."""

    text: str
    then: OutputReader

    def feed(self, text: str) -> Read:
        """See OutputReader."""
        return Read(rest=self.text + text, next=self.then)

    def finish(self, held: str) -> list[Event]:
        """See OutputReader."""
        return self.then.finish(self.text + held)


@dataclass(slots=True)
class Say:
    """Says something without taking text."""

    events: list[Event]
    then: Next

    def feed(self, text: str) -> Read:
        """See OutputReader."""
        return Read(events=self.events, rest=text, next=self.then())

    def finish(self, held: str) -> list[Event]:
        """See OutputReader."""
        return [*self.events, *([Content(held)] if held else [])]


@dataclass(slots=True)
class CallReader:
    """A call as one JSON object. What turns out to be none is content, with the `opening` that led here."""

    knows: Callable[[str], bool]
    opening: str
    done: Next
    broken: Next
    _call: JsonCall = field(init=False)
    _raw: str = ""

    def __post_init__(self) -> None:
        self._call = JsonCall(self.knows)

    def feed(self, text: str) -> Read:
        """See OutputReader."""
        events, rest = self._call.feed(text)
        self._raw += text[: len(text) - len(rest)]
        match self._call.state:
            case CallState.OPEN:
                return Read(events=events)
            case CallState.DONE:
                return Read(events=events, rest=rest, next=self.done())
            case CallState.BROKEN if self._call.began:
                # Its name is out already: what follows is the best there is of its arguments.
                return Read(events=events, rest=rest, next=self.done())
            case _:
                return Read(events=[Content(self.opening + self._raw)], rest=rest, next=self.broken())

    def finish(self, held: str) -> list[Event]:
        """See OutputReader."""
        if self._call.began:
            return [CallArguments(held)] if held else []
        return [Content(self.opening + self._raw + held)]


@dataclass(slots=True)
class ArgumentsReader:
    """The arguments of a call whose name is known: one JSON value, as it comes."""

    name: str
    done: Next
    _began: bool = False
    _scan: ValueScan = field(default_factory=ValueScan)

    def feed(self, text: str) -> Read:
        """See OutputReader."""
        events: list[Event] = []
        if not self._began:
            text = skip_space(text)
            if not text:
                return Read()
            events.append(CallBegan(self.name))
            self._began = True
        count = self._scan.eat(text)
        if count:
            events.append(CallArguments(text[:count]))
        ended = self._scan.state is not Scan.OPEN
        return Read(events=events, rest=text[count:], next=self.done() if ended else None)

    def finish(self, held: str) -> list[Event]:
        """See OutputReader."""
        if self._began:
            return [CallArguments(held)] if held else []
        return [CallBegan(self.name), CallArguments("{}")]


@dataclass(slots=True)
class HeaderReader:
    """A short text up to one of `ends`; `then` makes the next reader of it, or None if it means nothing."""

    opening: str
    ends: tuple[str, ...]
    then: Callable[[str, str], OutputReader | None]
    broken: Next
    chars_max: int = HEADER_CHARS_MAX

    def feed(self, text: str) -> Read:
        """See OutputReader."""
        found = find_marker(text, self.ends)
        if len(found.before) > self.chars_max:  # cut at one place, however the text was split
            said = self.opening + text[: self.chars_max]
            return Read(events=[Content(said)], rest=text[self.chars_max :], next=self.broken())
        if not found.marker:
            return Read(rest=text)
        after = self.then(found.before, found.marker)
        if after is None:
            raw = self.opening + found.before + found.marker
            return Read(events=[Content(raw)], rest=found.rest, next=self.broken())
        return Read(rest=found.rest, next=after)

    def finish(self, held: str) -> list[Event]:
        """See OutputReader."""
        raw = self.opening + held
        return [Content(raw)] if raw else []


@dataclass(slots=True)
class ParametersReader:
    """The inside of one call. `types`: JSON types of the parameters, as the tool declares them."""

    name: str
    types: Mapping[str, str]
    tags: Tags
    done: Callable[[], OutputReader]
    _began: bool = False
    _count: int = 0

    def feed(self, text: str) -> Read:
        """See OutputReader."""
        opening, close, end = self.tags.key[0], self.tags.value_end.strip(), self.tags.end
        events: list[Event] = []
        if not self._began:
            self._began = True
            events.append(CallBegan(self.name))
        while True:
            bare = skip_space(text)
            if bare.startswith(end):
                events.append(CallArguments("}" if self._count else "{}"))
                return Read(events=events, rest=bare[len(end) :], next=self.done())
            if not bare or opening.startswith(bare) or end.startswith(bare):
                return Read(events=events, rest=text)
            if not bare.startswith(opening):
                events.append(CallArguments("}" if self._count else "{}"))
                return Read(events=events, rest=bare, next=self.done())
            found = find_marker(bare, (close,))
            if not found.marker:
                return Read(events=events, rest=text)
            events.append(self._argument(found.before[len(opening) :]))
            text = found.rest

    def finish(self, held: str) -> list[Event]:
        """See OutputReader."""
        bare = skip_space(held)
        events: list[Event] = [] if self._began else [CallBegan(self.name)]
        opening = self.tags.key[0]
        if bare.startswith(opening) and self.tags.split.search(bare, len(opening)):
            events.append(self._argument(bare[len(opening) :]))
        events.append(CallArguments("}" if self._count else "{}"))
        return events

    def _argument(self, text: str) -> CallArguments:
        found = self.tags.split.search(text)
        key, value = (text, "") if found is None else (text[: found.start()], text[found.end() :])
        value = value.removeprefix("\n").removesuffix("\n")
        key = key.strip()
        self._count += 1
        says_text = found is not None and _IS_TEXT in found[0]
        written = json.dumps(value) if says_text else self._json(key, value)
        return CallArguments(("{" if self._count == 1 else ", ") + json.dumps(key) + ": " + written)

    def _json(self, key: str, value: str) -> str:
        if self.types.get(key) == "string":
            return json.dumps(value)
        try:
            json.loads(value)
        except ValueError:
            return json.dumps(value)
        return value.strip()

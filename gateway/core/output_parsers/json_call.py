"""A tool call as one JSON object, `{"name": …, "arguments": {…}}`, read while it arrives.

The name goes out as soon as it is known, the arguments as raw characters behind it. Arguments that come before the
name wait for it.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from gateway.core.output_parsers.events import CallArguments, CallBegan, Event
from gateway.core.output_parsers.json_scan import Scan, ValueScan, skip_space

ARGUMENT_KEYS = ("arguments", "parameters")
NAME_KEYS = ("name", "tool_name")
NAME_LENGTH_MAX = 256
# Characters that may be held before the name: longer text is no call.
HELD_CHARS_MAX = 64 * 1024


class _At(Enum):
    OPEN_BRACE = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    COMMA = auto()


class CallState(Enum):
    """State of a call."""

    OPEN = auto()
    DONE = auto()
    BROKEN = auto()  # what was read is no call; nothing of it was said if `began` is False


@dataclass(slots=True)
class JsonCall:
    """Reads one object. `knows`: whether there is a tool of that name."""

    knows: Callable[[str], bool]
    state: CallState = CallState.OPEN
    began: bool = False
    _at: _At = _At.OPEN_BRACE
    _key: str = ""
    _value: str = ""
    _scan: ValueScan | None = None
    _name: str | None = None
    _waiting: str = ""  # arguments that came before the name
    _had_arguments: bool = False
    _quoted: bool = False  # the value is a string
    _events: list[Event] = field(default_factory=list)

    def feed(self, text: str) -> tuple[list[Event], str]:
        """Take text; what it says, and what lies behind the object once that is complete."""
        self._events = []
        while text and self.state is CallState.OPEN:
            text = self._take(text)
        return self._events, text

    def _take(self, text: str) -> str:
        if self._at is _At.VALUE:
            return self._take_value(text)
        if self._at is _At.KEY and self._scan is not None:
            return self._take_key(text)
        text = skip_space(text)
        if not text:
            return text
        char, rest = text[0], text[1:]
        match self._at, char:
            case _At.OPEN_BRACE, "{":
                self._at = _At.KEY
            case _At.KEY, '"':
                self._scan, self._value = ValueScan(), ""
                return text
            case ((_At.KEY | _At.COMMA), "}"):
                self._end()
            case _At.COLON, ":":
                self._at, self._scan, self._value = _At.VALUE, None, ""
            case _At.COMMA, ",":
                self._at = _At.KEY
            case _:
                self.state = CallState.BROKEN
                return text
        return rest

    def _take_key(self, text: str) -> str:
        assert self._scan is not None
        count = self._scan.eat(text)
        self._value += text[:count]
        if self._scan.state is Scan.DONE:
            key = _string(self._value)
            self._key, self._scan, self._at = key or "", None, _At.COLON
            if key is None:
                self.state = CallState.BROKEN
        return text[count:]

    def _take_value(self, text: str) -> str:
        if self._scan is None:
            text = skip_space(text)
            if not text:
                return text
            if text[0] not in '{["':
                return self._take_bare(text)
            self._scan, self._quoted = ValueScan(), text[0] == '"'
        count = self._scan.eat(text)
        self._add(text[:count])
        if self._scan.state is Scan.BROKEN:
            self.state = CallState.BROKEN
        elif self._scan.state is Scan.DONE:
            self._value_ended()
        return text[count:]

    def _take_bare(self, text: str) -> str:
        """Take a number or a word, which ends before a comma or a brace."""
        for index, char in enumerate(text):
            if char in ",}":
                is_null = (self._value + text[:index]).strip() == "null"
                if self._key in NAME_KEYS or (self._key in ARGUMENT_KEYS and not is_null):
                    self.state = CallState.BROKEN
                    return text
                self._at = _At.COMMA
                self._value = ""
                return text[index:]
        self._value += text
        if len(self._value) > NAME_LENGTH_MAX:
            self.state = CallState.BROKEN
        return ""

    def _add(self, piece: str) -> None:
        if self._key in ARGUMENT_KEYS and not self._quoted:
            if self._name is None:
                self._waiting += piece
            else:
                self._events.append(CallArguments(piece))
            self._had_arguments = True
        else:
            self._value += piece
        if len(self._waiting) + len(self._value) > HELD_CHARS_MAX:
            self.state = CallState.BROKEN

    def _value_ended(self) -> None:
        self._at, self._scan = _At.COMMA, None
        if self._key in ARGUMENT_KEYS and self._quoted:  # some models write the object as a string
            self._quoted = False
            self._add(_string(self._value) or "{}")
        elif self._key in NAME_KEYS:
            name = _string(self._value)
            if name is None or not name or len(name) > NAME_LENGTH_MAX or not self.knows(name):
                self.state = CallState.BROKEN
                return
            self._name, self.began = name, True
            self._events.append(CallBegan(name))
            if self._waiting:
                self._events.append(CallArguments(self._waiting))
                self._waiting = ""
        self._value = ""

    def _end(self) -> None:
        if self._name is None:
            self.state = CallState.BROKEN
            return
        if not self._had_arguments:
            self._events.append(CallArguments("{}"))
        self.state = CallState.DONE


def _string(raw: str) -> str | None:
    try:
        value = json.loads(raw)
    except ValueError:
        return None
    return value if isinstance(value, str) else None

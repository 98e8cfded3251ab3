"""Follow JSON while it arrives: where its values begin and end. Does not build them."""

from dataclasses import dataclass, field
from enum import Enum, auto

DEPTH_MAX = 64
_SPACE = " \t\r\n"
_OPEN, _CLOSE = "{[", "}]"


class Scan(Enum):
    """State of a value."""

    OPEN = auto()  # more characters belong to it
    DONE = auto()  # complete
    BROKEN = auto()  # no JSON can begin like this


@dataclass(slots=True)
class ValueScan:
    """Eats the characters of one object, array or string; `DONE` with its last one."""

    state: Scan = Scan.OPEN
    _stack: list[str] = field(default_factory=list)
    _in_string: bool = False
    _escaped: bool = False

    def eat(self, text: str) -> int:
        """Take characters until the value ends; how many belonged to it."""
        for index, char in enumerate(text):
            self._step(char)
            if self.state is not Scan.OPEN:
                return index + (self.state is Scan.DONE)
        return len(text)

    def _step(self, char: str) -> None:
        if self._in_string:
            self._step_string(char)
        elif char == '"':
            self._in_string = True
        elif char in _OPEN:
            if len(self._stack) == DEPTH_MAX:
                self.state = Scan.BROKEN
                return
            self._stack.append(_CLOSE[_OPEN.index(char)])
        elif char in _CLOSE:
            if not self._stack or self._stack.pop() != char:
                self.state = Scan.BROKEN
            elif not self._stack:
                self.state = Scan.DONE
        elif not self._stack:
            self.state = Scan.BROKEN  # a bare number or word is no value that calls use

    def _step_string(self, char: str) -> None:
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._in_string = False
            if not self._stack:
                self.state = Scan.DONE


def skip_space(text: str) -> str:
    """Strip leading white space."""
    return text.lstrip(_SPACE)

"""Regular expressions of JSON schemas in the spelling of Rust, which means the same to every reader of them. Pure.

What no automaton holds is refused: looking around, references to groups, word borders, anchors inside.
"""

import re
from collections.abc import Mapping

from common.errors import InvalidRequest
from runner.core.grammar.json_merge import refusal

PATTERN_CHARACTERS_MAX = 2_000
_NESTING_MAX = 32
_REPEATS_MAX = 1_000
# Readers of patterns differ in what beyond ASCII is a digit, a letter or a space. What all of them call so is allowed
# where one is asked for; what any of them calls so is left out where none may be.
_NARROW = {"d": "0-9", "w": "0-9A-Za-z_", "s": r"\t\n\f\r\x20"}
_WIDE = {
    "d": r"0-9\x{660}-\x{10FFFF}",
    "w": r"0-9A-Za-z_\x{80}-\x{10FFFF}",
    "s": r"\t-\r\x{1C}-\x20\x{85}\x{A0}\x{1680}\x{180E}\x{2000}-\x{200A}\x{2028}\x{2029}"
    r"\x{202F}\x{205F}\x{3000}\x{FEFF}",
}
# Control characters that JSON strings have short escapes for are the only ones that are written; llguidance takes a
# class with all of them for one with every escape, that of a quote too.
_WRITTEN = r"[^\x00-\x07\x0B\x0E-\x1F]"
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0"}
_ONE = re.compile(r"\\(?:x(?P<short>[0-9a-fA-F]{2})|u(?P<long>[0-9a-fA-F]{4})|(?P<escaped>.))|[^\\]", re.DOTALL)
_COUNT = re.compile(r"([*+?]|\{(\d+)(,(\d*))?\}|)\??", re.ASCII)
_DAYS = "(0[1-9]|1[0-9]|2[0-8])"
_DATE = (
    r"[0-9]{4}-((01|03|05|07|08|10|12)-(0[1-9]|[12][0-9]|3[01])|(04|06|09|11)-(0[1-9]|[12][0-9]|30)"
    rf"|02-{_DAYS})"
)
_HOUR = "([01][0-9]|2[0-3])"
_TIME = rf"{_HOUR}:[0-5][0-9]:[0-5][0-9](\.[0-9]{{1,6}})?(Z|[+-]{_HOUR}:[0-5][0-9])"
_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9][0-9]|[0-9])"
# Other formats are annotations.
FORMATS: Mapping[str, str] = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "uuid": "^[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$",
    "ipv4": rf"^({_OCTET}\.){{3}}{_OCTET}$",
}


def anchored_pattern(pattern: str) -> str:
    """Return a regular expression that matches the whole of each string in which the pattern is found.

    Raises:
        InvalidRequest: the pattern cannot be read, or no automaton holds it.
    """
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise refusal(f"pattern is longer than {PATTERN_CHARACTERS_MAX} characters")
    return _Pattern(pattern).convert()


class _Pattern:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._out: list[str] = []

    def convert(self) -> str:
        self._anchored()
        while self._take("|"):
            self._out.append("|")
            self._anchored()
        if self._at < len(self._pattern):
            raise _unsupported(self._pattern, "an unexpected )")
        return f"^({''.join(self._out)})$"

    def _anchored(self) -> None:
        """One alternative of the whole pattern, which may stand anywhere unless it is anchored."""
        if not self._take("^"):
            self._out.append(f"{_WRITTEN}*")
        self._sequence(0)
        if not self._take("$"):
            self._out.append(f"{_WRITTEN}*")

    def _sequence(self, depth: int) -> None:
        while self._at < len(self._pattern) and self._pattern[self._at] not in "|)$":
            self._item(depth)
            found = _COUNT.match(self._pattern, self._at)
            if found is not None and found[0]:
                if max(int(found[2] or 0), int(found[4] or 0)) > _REPEATS_MAX:
                    raise _unsupported(self._pattern, f"more than {_REPEATS_MAX} repetitions")
                self._out.append(found[1])
                self._at = found.end()

    def _item(self, depth: int) -> None:
        pattern = self._pattern
        match pattern[self._at]:
            case "(":
                self._group(depth + 1)
            case "[":
                text, self._at = _class(pattern, self._at + 1)
                self._out.append(f"[{text}&&{_WRITTEN}]")
            case ".":
                self._at += 1
                self._out.append(rf"[[^\n\r\x{{2028}}\x{{2029}}]&&{_WRITTEN}]")
            case "^":
                raise _unsupported(pattern, "an anchor inside")
            case "*" | "+" | "?" | "{":
                raise _unsupported(pattern, "a repetition of nothing, or without counts")
            case _:
                found = _ONE.match(pattern, self._at)
                if found is None:
                    raise _unsupported(pattern, "a backslash at the end")
                self._at = found.end()
                text = _one(pattern, found, wide=False)
                self._out.append(f"[{text}&&{_WRITTEN}]" if text.startswith("[") else text)

    def _group(self, depth: int) -> None:
        if depth > _NESTING_MAX:
            raise _unsupported(self._pattern, f"groups nested deeper than {_NESTING_MAX}")
        if not self._take("(?:") and not self._take("("):
            return
        if self._pattern.startswith("?", self._at):
            raise _unsupported(self._pattern, "looking around, and named groups")
        self._out.append("(")
        self._sequence(depth)
        while self._take("|"):
            self._out.append("|")
            self._sequence(depth)
        if not self._take(")"):
            raise _unsupported(self._pattern, "a group without end")
        self._out.append(")")

    def _take(self, expected: str) -> bool:
        found = self._pattern.startswith(expected, self._at)
        self._at += len(expected) * found
        return found


def _class(pattern: str, at: int) -> tuple[str, int]:
    """Return a class of characters, and where it ends."""
    inverse = pattern.startswith("^", at)
    at += inverse
    parts: list[str] = []
    while not pattern.startswith("]", at):
        first, at = _part(pattern, at, wide=inverse)
        if pattern.startswith("-", at) and pattern[at + 1 : at + 2] not in ("]", "") and not first.startswith("["):
            last, at = _part(pattern, at + 1, wide=inverse)
            if last.startswith("[") or int(last[3:-1], 16) < int(first[3:-1], 16):
                raise _unsupported(pattern, "a range of characters that ends before it begins")
            first = f"{first}-{last}"
        parts.append(first)
    if not parts and not inverse:
        raise _unsupported(pattern, "a class of characters that is empty")
    return (f"[{'^' if inverse else ''}{''.join(parts)}]" if parts else r"[\s\S]"), at + 1


def _part(pattern: str, at: int, *, wide: bool) -> tuple[str, int]:
    if pattern.startswith("\\b", at):
        return r"\x{8}", at + 2
    found = _ONE.match(pattern, at)
    if found is None:
        raise _unsupported(pattern, "a class without end")
    if not pattern.startswith("\\", at):
        return _character(pattern[at]), at + 1
    return _one(pattern, found, wide=wide), found.end()


def _one(pattern: str, found: re.Match[str], *, wide: bool) -> str:
    """Return one character or class that stands for itself or is escaped; `wide` within an inverse class."""
    kind = found["escaped"]
    if kind is None:
        digits = found["short"] or found["long"]
        return _character(chr(int(digits, 16)) if digits else found[0])
    if kind.lower() in _NARROW:
        negated = kind.isupper()
        return f"[{'^' if negated else ''}{(_WIDE if negated != wide else _NARROW)[kind.lower()]}]"
    if kind in _CONTROLS:
        return _character(_CONTROLS[kind])
    if kind.isalnum():
        raise _unsupported(pattern, f"\\{kind}")
    return _character(kind)


def _character(character: str) -> str:
    return f"\\x{{{ord(character):X}}}"


def _unsupported(pattern: str, what: str) -> InvalidRequest:
    return refusal(f"pattern {pattern[:80]!r} is not supported: {what}")

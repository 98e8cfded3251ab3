"""Regular expressions of JSON schemas as grammar texts for JSON strings. Pure.

What a grammar cannot say is refused: looking around, references to groups, word borders, anchors inside.
"""

from typing import NoReturn

from common.errors import InvalidRequest
from runner.core.grammar.json_grammar_parts import quoted
from runner.core.grammar.utf8_ranges import CODE_POINT_MAX, complement, merged

PATTERN_CHARACTERS_MAX = 2_000
_NESTING_MAX = 32
_REPEATS_MAX = 1_000

Ranges = tuple[tuple[int, int], ...]
_DIGIT: Ranges = ((0x30, 0x39),)
_WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE: Ranges = ((0x09, 0x0A), (0x0C, 0x0D), (0x20, 0x20))
_LINE_ENDS: Ranges = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
# Readers of patterns differ in what beyond ASCII is a digit, a letter or a space. What all of them call so is allowed
# where one is asked for; what any of them calls so is left out where none may be.
_WIDE_DIGIT: Ranges = (*_DIGIT, (0x660, CODE_POINT_MAX))
_WIDE_WORD: Ranges = (*_WORD, (0x80, CODE_POINT_MAX))
_WIDE_SPACE: Ranges = (
    *((0x09, 0x0D), (0x1C, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x180E, 0x180E)),
    *((0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
)
_NARROW = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_WIDE = {"d": _WIDE_DIGIT, "w": _WIDE_WORD, "s": _WIDE_SPACE}
_NARROW_CLASSES = _NARROW | {name.upper(): complement(ranges) for name, ranges in _WIDE.items()}
_WIDE_CLASSES = _WIDE | {name.upper(): complement(ranges) for name, ranges in _NARROW.items()}
_ESCAPED_CHARACTERS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0"}
_JSON_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f", "\b": "\\b"}
# What JSON strings hold only behind a backslash, and DEL, which the grammar of strings leaves out.
_ESCAPED_IN_JSON: Ranges = ((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F))


def pattern_to_grammar(pattern: str) -> str:
    """Return the inside of a JSON string in which the pattern is found.

    Raises:
        InvalidRequest: the pattern cannot be read, or a grammar cannot say it.
    """
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise InvalidRequest(f"pattern is longer than {PATTERN_CHARACTERS_MAX} characters", param="json_schema")
    return _Pattern(pattern).convert()


class _Pattern:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def convert(self) -> str:
        alternatives = [self._anchored()]
        while self._take("|"):
            alternatives.append(self._anchored())
        if self._at < len(self._text):
            self._fail("an unexpected )")
        return " | ".join(alternatives)

    def _anchored(self) -> str:
        """One alternative of the whole pattern, which may stand anywhere unless it is anchored."""
        begins = self._take("^")
        inside = self._sequence(0)
        ends = self._take("$")
        return " ".join((*(() if begins else ("char*",)), inside, *(() if ends else ("char*",))))

    def _alternatives(self, depth: int) -> str:
        if depth > _NESTING_MAX:
            self._fail(f"groups nested deeper than {_NESTING_MAX}")
        alternatives = [self._sequence(depth)]
        while self._take("|"):
            alternatives.append(self._sequence(depth))
        return "(" + " | ".join(alternatives) + ")"

    def _sequence(self, depth: int) -> str:
        parts: list[str] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)$":
            parts.append(self._item(depth) + self._quantifier())
        return " ".join(parts) or '""'

    def _item(self, depth: int) -> str:
        following = self._text[self._at]
        self._at += 1
        match following:
            case "(":
                if self._take("?") and not self._take(":"):
                    self._fail("looking around, and named groups")
                inside = self._alternatives(depth + 1)
                if not self._take(")"):
                    self._fail("a group without end")
                return inside
            case "[":
                return _characters(self._class())
            case ".":
                return _characters(complement(_LINE_ENDS))
            case "\\":
                return _characters(self._escape())
            case "^":
                self._fail("an anchor inside")
            case "*" | "+" | "?":
                self._fail("a repetition of nothing")
        return _characters(((ord(following), ord(following)),))

    def _quantifier(self) -> str:
        """Parse a repetition; greedy or not, the same texts match."""
        sign = self._text[self._at : self._at + 1]
        if sign not in ("*", "+", "?", "{") or not sign:
            return ""
        self._at += 1
        if sign == "{":
            end = self._text.find("}", self._at)
            least, comma, most = self._text[self._at : end].partition(",") if end > 0 else ("", "", "")
            if not least.isdecimal() or (most and not most.isdecimal()):
                self._fail("a repetition without counts")
            if max(int(least), int(most or 0)) > _REPEATS_MAX:
                self._fail(f"more than {_REPEATS_MAX} repetitions")
            self._at = end + 1
            sign = f"{{{int(least)}{',' if comma else ''}{int(most) if most else ''}}}"
        self._take("?")
        return sign

    def _class(self) -> Ranges:
        inverse = self._take("^")
        ranges: list[tuple[int, int]] = []
        while not self._take("]"):
            first = self._class_part(wide=inverse)
            if (
                len(first) == 1
                and first[0][0] == first[0][1]
                and self._text[self._at : self._at + 1] == "-"
                and self._text[self._at + 1 : self._at + 2] not in ("]", "")
            ):
                self._at += 1
                last = self._class_part(wide=inverse)
                if len(last) != 1 or last[0][0] != last[0][1] or last[0][0] < first[0][0]:
                    self._fail("a range of characters that ends before it begins")
                first = ((first[0][0], last[0][0]),)
            ranges += first
        return complement(ranges) if inverse else tuple(merged(ranges))

    def _class_part(self, *, wide: bool) -> Ranges:
        if self._at >= len(self._text):
            self._fail("a class without end")
        following = self._text[self._at]
        self._at += 1
        if following == "\\":
            if self._take("b"):
                return ((0x08, 0x08),)
            return self._escape(wide=wide)
        return ((ord(following), ord(following)),)

    def _escape(self, *, wide: bool = False) -> Ranges:
        kind = self._text[self._at : self._at + 1]
        self._at += 1
        if kind in _NARROW_CLASSES:
            return (_WIDE_CLASSES if wide else _NARROW_CLASSES)[kind]
        if kind in ("x", "u"):
            count = 2 if kind == "x" else 4
            digits = self._text[self._at : self._at + count]
            self._at += count
            if len(digits) != count or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
                self._fail("an escape without digits")
            return ((int(digits, 16), int(digits, 16)),)
        if kind in _ESCAPED_CHARACTERS:
            return ((ord(_ESCAPED_CHARACTERS[kind]),) * 2,)
        if not kind or kind.isalnum():
            self._fail(f"\\{kind}")
        return ((ord(kind), ord(kind)),)

    def _take(self, expected: str) -> bool:
        if self._text.startswith(expected, self._at):
            self._at += 1
            return True
        return False

    def _fail(self, what: str) -> NoReturn:
        raise InvalidRequest(f"pattern {self._text[:80]!r} is not supported: {what}", param="json_schema")


def _characters(ranges: Ranges) -> str:
    """One character of a JSON string, written as JSON writes it."""
    escaped = merged(_intersection(ranges, _ESCAPED_IN_JSON))
    plain = merged(_intersection(ranges, complement(_ESCAPED_IN_JSON)))
    parts = []
    if plain:
        inside = "".join(
            _range_text(first) + (f"-{_range_text(last)}" if last > first else "") for first, last in plain
        )
        parts.append(f"[{inside}]")
    parts += [quoted(_json_escape(chr(code))) for first, last in escaped for code in range(first, last + 1)]
    if not parts:
        raise InvalidRequest("pattern has a class of characters that is empty", param="json_schema")
    return parts[0] if len(parts) == 1 else "(" + " | ".join(parts) + ")"


def _json_escape(character: str) -> str:
    if character == "\x7f":
        return character
    return _JSON_ESCAPES.get(character, f"\\u{ord(character):04x}")


def _range_text(code: int) -> str:
    return f"\\U{code:08X}"


def _intersection(left: Ranges, right: Ranges) -> Ranges:
    return complement((*complement(left), *complement(right)))

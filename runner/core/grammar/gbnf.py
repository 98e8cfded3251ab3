"""Grammars in llama.cpp's notation (GBNF) as rules of llguidance's Lark dialect, one lexeme for each character. Pure.

llguidance's lexer is greedy, so that a lexeme of several characters could hide another way to read them; with single
characters its Earley parser follows every way. Rules that end with calls of each other are written the other way
round: a parser keeps every open call, and on a long answer they would be too many.

Source: the notation as llama.cpp's grammars/README.md describes it. Elements that name tokens (`<[1]>`, `<think>`) are
refused: control tokens never come up in a constrained answer.
"""

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, NoReturn

from common.errors import InvalidRequest

TEXT_BYTES_MAX = 256 * 1024
RULES_MAX = 10_000
ELEMENTS_MAX = 100_000
REPEATS_MAX = 2_000
NESTING_MAX = 100
# llguidance counts each use of a terminal, and has room for 65,000. Rules count once; a mask takes a quarter longer.
_TERMINALS_UP_TO = 20_000
_ROOT = "root"
_ERROR_TEXT_MAX = 40
_CODE_POINT_MAX = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)
_TOKEN = re.compile(
    r"""(?P<blank>[ \t]+|\#[^\r\n]*) | (?P<line>[\r\n]) | (?P<defines>::=) | (?P<name>[a-zA-Z0-9-]+)
      | (?P<literal>"(?:[^"\\]|\\.)*") | (?P<characters>\[(?:[^\]\\]|\\.)*\]) | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_CHARACTER = re.compile(r"\\(?P<kind>x|u|U)(?P<digits>[0-9a-fA-F]*)|\\(?P<escaped>.)|(?P<plain>.)", re.DOTALL)
_COUNTS = re.compile(r"\{[ \t]*(\d+)[ \t]*(?:(,)[ \t]*(\d*)[ \t]*)?\}", re.ASCII)
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-"}
_DIGITS = {"x": 2, "u": 4, "U": 8}
_SIGNS: Mapping[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


class Repeated(NamedTuple):
    """An element that stands `least` to `most` times; None: without bound."""

    element: "int | str"
    least: int
    most: int | None


# A rule's number, a Lark name, or one of them repeated.
Element = int | str | Repeated
Alternative = tuple[Element, ...]


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


class LarkText:
    """A grammar that is being written: rules, and one terminal for each set of characters."""

    def __init__(self) -> None:
        """Empty."""
        self._lines = ['%llguidance {"no_forcing": true}']
        self._terminals: dict[str, str] = {}
        self._letter = "C"  # an upper case letter makes a terminal, a lower case one a rule
        self._rules = 0

    def rule(self, text: str, *, lazy: bool = False) -> str:
        """Add a rule; return its name. A lazy one, a regular expression, ends as soon as it matches."""
        self._rules += 1
        name = f"r{self._rules}"
        self._lines.append(f"{name}{'[lazy]' if lazy else ''}: {text}")
        return name

    def characters(self, regex: str) -> str:
        """Return the name of the terminal, or rule, of a character class."""
        return self._terminals.setdefault(regex, f"{self._letter}{len(self._terminals)}")

    def gbnf(self, text: str, *, param: str = "grammar", parts: Mapping[str, str] | None = None) -> str:
        """Add a grammar; return the name of its root. `parts` are Lark rules that it refers to, by name.

        Raises:
            InvalidRequest: it cannot be read, refers to a rule that is not there, or is too large.
        """
        if len(text.encode(errors="replace")) > TEXT_BYTES_MAX:
            raise InvalidRequest(f"{param} is longer than {TEXT_BYTES_MAX} bytes", param=param)
        if len(text) > _TERMINALS_UP_TO:
            self._letter = "c"
        parser = _Parser(text, param, self, parts or {})
        root = parser.parse()
        return self._write(parser.rules, root)

    def whole(self, root: str) -> str:
        """Return the text of the grammar whose answers are those of a rule."""
        terminals = [f"{name}: /{regex}/" for regex, name in self._terminals.items()]
        return "\n".join([*self._lines, *terminals, f"start: {root}"]) + "\n"

    def _write(self, rules: Sequence[Sequence[Alternative]], root: int) -> str:
        prefix = f"g{self._rules}-"
        self._rules += 1
        turned = _endless(rules)
        entries = {root} | {
            used
            for number, alternatives in enumerate(rules)
            for alternative in alternatives
            for place, used in _uses(alternative)
            if number not in turned or place < len(alternative) - 1
        }
        written = 0
        for number, alternatives in enumerate(rules):
            if number in turned and number in entries and written < RULES_MAX:
                lines = _turned_round(rules, turned, number, prefix)
                written += len(lines)
                self._lines += lines
            elif number in entries or number not in turned or written >= RULES_MAX:
                self._lines.append(f"{prefix}{number}: " + " | ".join(_text(one, prefix) for one in alternatives))
        return f"{prefix}{root}"


def _uses(alternative: Alternative) -> list[tuple[int, int]]:
    """Rules in an alternative, with their places; a repeated one has the place before the first."""
    found = [(place, element) for place, element in enumerate(alternative) if isinstance(element, int)]
    repeated = [element.element for element in alternative if isinstance(element, Repeated)]
    return found + [(-1, element) for element in repeated if isinstance(element, int)]


def _endless(rules: Sequence[Sequence[Alternative]]) -> set[int]:
    """Return the rules from which calls at the end of rules lead to a circle."""
    calls = [{last for one in rule if one and isinstance(last := one[-1], int)} for rule in rules]
    callers: list[list[int]] = [[] for _ in rules]
    for number, called in enumerate(calls):
        for one in called:
            callers[one].append(number)
    open_calls = [len(called) for called in calls]
    ending = deque(number for number, count in enumerate(open_calls) if not count)
    endless = set(range(len(rules)))
    while ending:
        number = ending.popleft()
        endless.discard(number)
        for caller in callers[number]:
            open_calls[caller] -= 1
            if not open_calls[caller]:
                ending.append(caller)
    return endless


def _turned_round(rules: Sequence[Sequence[Alternative]], turned: set[int], entry: int, prefix: str) -> list[str]:
    """Write a rule by what leads from its beginning to each rule that it ends with."""
    ways: dict[int, list[str]] = {entry: ['""']}
    ends: list[str] = []
    todo = [entry]
    while todo:
        number = todo.pop()
        has_end = False
        for alternative in rules[number]:
            last = alternative[-1] if alternative else None
            if isinstance(last, int) and last in turned:
                if last not in ways:
                    ways[last] = []
                    todo.append(last)
                ways[last].append(f"{prefix}{entry}-{number} {_text(alternative[:-1], prefix)}")
            else:
                ends.append(f"{prefix}{entry}-{number} {_text(alternative, prefix)}")
                has_end = True
        if not has_end:  # an answer may go on for ever: no token has a zero
            ends.append(f"{prefix}{entry}-{number} /\\x00/")
    lines = [f"{prefix}{entry}-{number}: " + " | ".join(way) for number, way in ways.items()]
    return [*lines, f"{prefix}{entry}: " + " | ".join(ends)]


def _text(alternative: Alternative, prefix: str) -> str:
    parts = []
    for element in alternative:
        one = element.element if isinstance(element, Repeated) else element
        text = f"{prefix}{one}" if isinstance(one, int) else one
        if isinstance(element, Repeated):
            text += _counts_text(element.least, element.most)
        parts.append(text)
    return " ".join(part for part in parts if part) or '""'


def _counts_text(least: int, most: int | None) -> str:
    if most is None:
        return {0: "*", 1: "+"}.get(least, f"{{{least},}}")
    return f"{{{least},{most}}}"


class _Parser:
    """One pass over the text; what groups or may be missing becomes a rule of its own."""

    def __init__(self, text: str, param: str, lark: LarkText, parts: Mapping[str, str]) -> None:
        self._text = text
        self._param = param
        self._lark = lark
        self._parts = parts
        self._numbers: dict[str, int] = {}
        self._elements = 0
        self.rules: list[list[Alternative]] = []
        self._undefined: dict[int, str] = {}
        self._tokens = self._split(text)
        self._next = next(self._tokens)

    def parse(self) -> int:
        self._skip(lines=True)
        while self._next.kind != "end":
            self._rule()
        if _ROOT not in self._numbers:
            self._fail_with(f"it has no rule {_ROOT!r}")
        for name in self._undefined.values():
            self._fail_with(f"rule {name!r} is used and not defined")
        return self._numbers[_ROOT]

    @staticmethod
    def _split(text: str) -> Iterator[_Token]:
        for found in _TOKEN.finditer(text):
            yield _Token(found.lastgroup or "other", found[0], found.start())
        while True:
            yield _Token("end", "", len(text))

    def _rule(self) -> None:
        name = self._take("name")
        if name is None:
            self._fail("expecting a name")
        number = self._number(name)
        self._skip(lines=False)
        if self._take("defines") is None:
            self._fail("expecting ::=")
        self._skip(lines=True)
        self.rules[number] = self._alternatives(depth=0)
        self._undefined.pop(number, None)
        if self._next.kind not in ("line", "end"):
            self._fail("expecting a new line")
        self._skip(lines=True)

    def _alternatives(self, *, depth: int) -> list[Alternative]:
        if depth > NESTING_MAX:
            self._fail_with(f"groups are nested deeper than {NESTING_MAX}")
        alternatives = [self._sequence(depth)]
        while self._next.text == "|":
            self._advance()
            self._skip(lines=True)
            alternatives.append(self._sequence(depth))
        return alternatives

    def _sequence(self, depth: int) -> Alternative:
        done: list[Element] = []
        last: list[Element] = []  # what a repetition would repeat
        while True:
            if self._next.text in ("*", "+", "?", "{"):
                last = self._repeated(last)
            elif (element := self._element(depth)) is not None:
                done += last
                last = element
            else:
                return tuple(done + last)
            self._skip(lines=depth > 0)

    def _element(self, depth: int) -> list[Element] | None:
        """Parse the next element; None where the sequence ends."""
        kind, text, at = self._next
        match kind, text:
            case "literal", _:
                elements = [self._characters(f"\\x{{{code:x}}}") for code, _ in self._codes(text[1:-1], at)]
            case "characters", _:
                elements = [self._characters(self._class(text, at))]
            case "other", ".":
                elements = [self._characters("(?s:.)")]
            case "name", _:
                elements = [self._parts[text] if text in self._parts else self._number(text)]
            case "other", "(":
                self._advance()
                self._skip(lines=True)
                elements = [self._new_rule(self._alternatives(depth=depth + 1))]
                if self._next.text != ")":
                    self._fail("expecting )")
            case "other", "<" | "!":
                self._fail_with("elements that name tokens are not supported")
            case "other", '"' | "[":
                self._fail("unexpected end")
            case _:
                return None
        self._advance()
        return elements

    def _characters(self, regex: str) -> Element:
        self._spend()
        return self._lark.characters(regex)

    def _class(self, text: str, at: int) -> str:
        codes = self._codes(text[1:-1].removeprefix("^"), at)
        if not codes:
            self._fail_with("a class of characters is empty")
        ranges = []
        while codes:
            first = last = codes.pop(0)[0]
            if len(codes) > 1 and codes[0] == (ord("-"), False):
                last = codes[1][0]
                del codes[:2]
            if last < first:
                self._fail_with("a range of characters ends before it begins")
            ranges.append(f"\\x{{{first:x}}}-\\x{{{last:x}}}")
        return f"[{'^' if text.startswith('[^') else ''}{''.join(ranges)}]"

    def _codes(self, text: str, at: int) -> list[tuple[int, bool]]:
        """Return the characters of a text, and which of them were escaped."""
        codes: list[tuple[int, bool]] = []
        place = 0
        while place < len(text):
            found = _CHARACTER.match(text, place)
            assert found is not None, "a backslash has a character behind it"
            place = found.end()
            if found["kind"]:
                count = _DIGITS[found["kind"]]
                if len(found["digits"]) < count:
                    self._fail("expecting hexadecimal digits", at + 1 + found.start("digits"))
                place = found.start("digits") + count
                codes.append((int(found["digits"][:count], 16), True))
            elif found["escaped"]:
                if found["escaped"] not in _ESCAPES:
                    self._fail("unknown escape", at + 1 + found.start())
                codes.append((ord(_ESCAPES[found["escaped"]]), True))
            else:
                codes.append((ord(found["plain"]), False))
            if codes[-1][0] in _SURROGATES or codes[-1][0] > _CODE_POINT_MAX:
                self._fail_with("an escape names no character")
        return codes

    def _repeated(self, repeated: list[Element]) -> list[Element]:
        """Apply the next repetition to `repeated`."""
        least, most = self._counts()
        if not repeated:
            self._fail("expecting something to repeat before")
        if max(least, most or 0) > REPEATS_MAX:
            self._fail_with(f"something repeats more often than {REPEATS_MAX} times")
        if most is not None and most < least:
            self._fail_with("a repetition ends before it begins")
        if most == 0:
            return []
        if (least, most) == (0, 1):
            return [self._new_rule([tuple(repeated), ()])]
        one = repeated[0] if len(repeated) == 1 else self._new_rule([tuple(repeated)])
        if isinstance(one, Repeated):
            one = self._new_rule([(one,)])
        return [Repeated(one, least, most)]

    def _counts(self) -> tuple[int, int | None]:
        sign, at = self._next.text, self._next.at
        if sign != "{":
            self._advance()
            return _SIGNS[sign]
        found = _COUNTS.match(self._text, at)
        if found is None:
            self._fail("expecting a number" if "}" in self._text[at:] else "expecting }", at + 1)
        while self._next.at < found.end() and self._next.kind != "end":
            self._advance()
        least = min(int(found[1][:9]), REPEATS_MAX + 1)
        most = min(int(found[3][:9]), REPEATS_MAX + 1) if found[3] else None
        return least, most if found[2] else least

    def _number(self, name: str) -> int:
        if name not in self._numbers:
            self._numbers[name] = self._new_rule([])
            self._undefined[self._numbers[name]] = name
        return self._numbers[name]

    def _new_rule(self, alternatives: list[Alternative]) -> int:
        self.rules.append(alternatives)
        self._spend()
        if len(self._numbers) > RULES_MAX:
            self._fail_with(f"it has more than {RULES_MAX} rules")
        return len(self.rules) - 1

    def _spend(self) -> None:
        self._elements += 1
        if self._elements > ELEMENTS_MAX:
            self._fail_with(f"it has more than {ELEMENTS_MAX} elements")

    def _skip(self, *, lines: bool) -> None:
        """Go over blanks and comments, and over ends of lines where they mean nothing."""
        while self._next.kind == "blank" or (lines and self._next.kind == "line"):
            self._advance()

    def _take(self, kind: str) -> str | None:
        text = self._next.text
        if self._next.kind != kind:
            return None
        self._advance()
        return text

    def _advance(self) -> None:
        self._next = next(self._tokens)

    def _fail(self, reason: str, at: int | None = None) -> NoReturn:
        start = self._next.at if at is None else at
        self._fail_with(f"{reason} at {self._text[start : start + _ERROR_TEXT_MAX]!r}")

    def _fail_with(self, reason: str) -> NoReturn:
        line = self._text.count("\n", 0, self._next.at) + 1
        raise InvalidRequest(f"{self._param} cannot be used: {reason} (line {line})", param=self._param)

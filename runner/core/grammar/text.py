"""Read a grammar in llama.cpp's notation (GBNF) into rules over bytes, and check them as a whole. Pure.

Source: the notation as llama.cpp's grammars/README.md describes it. Elements that name tokens (`<[1]>`, `<think>`) are
refused: control tokens never come up in a constrained answer.
"""

from collections.abc import Mapping
from typing import NoReturn

from common.errors import InvalidRequest
from runner.core.grammar.rules import Alternative, ByteSet, Element, GrammarRules, moved
from runner.core.grammar.utf8_ranges import CODE_POINT_MAX, complement, utf8_sequences

TEXT_BYTES_MAX = 256 * 1024
RULES_MAX = 10_000
# Elements after every repetition is written out: bounds memory (about 100 bytes each) and time of a parse.
ELEMENTS_MAX = 100_000
REPEATS_MAX = 2_000
NESTING_MAX = 100
ROOT = "root"
_ERROR_TEXT_MAX = 40

_ESCAPES = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-"}
_HEX_ESCAPES = {"x": 2, "u": 4, "U": 8}
_EVERYTHING = ((0, 0xD7FF), (0xE000, CODE_POINT_MAX))


def left_recursive(rules: list[list[Alternative]]) -> bool:
    """Return True if some rule can reach itself before a byte was read."""
    empty = _may_be_empty(rules)
    first = [_begins_with(alternatives, empty) for alternatives in rules]
    # Take away, again and again, what leads nowhere; what is left lies on circles or leads to one.
    waiting = [len(found) for found in first]
    users: list[list[int]] = [[] for _ in rules]
    for number, found in enumerate(first):
        for used in found:
            users[used].append(number)
    done = [number for number, count in enumerate(waiting) if count == 0]
    for number in done:
        for user in users[number]:
            waiting[user] -= 1
            if waiting[user] == 0:
                done.append(user)
    return len(done) < len(rules)


def _begins_with(alternatives: list[Alternative], empty: list[bool]) -> set[int]:
    """Rules that a rule goes into before it reads a byte."""
    found: set[int] = set()
    for alternative in alternatives:
        for element in alternative:
            if not isinstance(element, int):
                break
            found.add(element)
            if not empty[element]:
                break
    return found


def _may_be_empty(rules: list[list[Alternative]]) -> list[bool]:
    empty = [False] * len(rules)
    users: list[set[int]] = [set() for _ in rules]
    for number, alternatives in enumerate(rules):
        for alternative in alternatives:
            for element in alternative:
                if isinstance(element, int):
                    users[element].add(number)
    todo = list(range(len(rules)))
    while todo:
        number = todo.pop()
        if not empty[number] and any(
            all(isinstance(element, int) and empty[element] for element in alternative) for alternative in rules[number]
        ):
            empty[number] = True
            todo += users[number]
    return empty


def parse_grammar(
    text: str, *, param: str = "grammar", parts: Mapping[str, GrammarRules] | None = None
) -> GrammarRules:
    """Read a grammar. `parts` are grammars that it refers to as rules, by name.

    Raises:
        InvalidRequest: it cannot be read, refers to a rule that is not there, recurses on the left, or is too large.
    """
    if len(text.encode(errors="replace")) > TEXT_BYTES_MAX:
        raise InvalidRequest(f"{param} is longer than {TEXT_BYTES_MAX} bytes", param=param)
    parser = _Parser(text, param)
    for name, rules in (parts or {}).items():
        parser.add_part(name, rules)
    return parser.parse()


class _Parser:
    """One pass over the text; what repeats or groups becomes a rule of its own."""

    def __init__(self, text: str, param: str) -> None:
        self._text = text
        self._param = param
        self._at = 0
        self._numbers: dict[str, int] = {}
        self._rules: list[list[Alternative] | None] = []
        self._elements = 0
        self._classes: dict[ByteSet, list[Element]] = {}

    def add_part(self, name: str, part: GrammarRules) -> None:
        offset = len(self._rules)
        for rule in part.rules:
            self._spend(1 + sum(len(alternative) for alternative in rule))
            self._rules.append([*moved(rule, offset)])
        self._numbers[name] = offset + part.root

    def parse(self) -> GrammarRules:
        self._skip(lines=True)
        while self._at < len(self._text):
            self._rule()
        if ROOT not in self._numbers:
            self._fail_with(f"it has no rule {ROOT!r}")
        rules: list[list[Alternative]] = []
        for name, number in self._numbers.items():
            if self._rules[number] is None:
                self._fail_with(f"rule {name!r} is used and not defined")
        for rule in self._rules:
            assert rule is not None, "every rule without a name is defined where it is made"
            rules.append(rule)
        if left_recursive(rules):
            self._fail_with("a rule begins with itself (left recursion)")
        return GrammarRules(rules=rules, root=self._numbers[ROOT])

    def _rule(self) -> None:
        name = self._name()
        number = self._number(name)
        self._skip(lines=False)
        if not self._take("::="):
            self._fail("expecting ::=")
        self._skip(lines=True)
        self._rules[number] = self._alternatives(depth=0)
        if self._at < len(self._text):
            if self._text[self._at] not in "\r\n":
                self._fail("expecting a new line")
            self._skip(lines=True)

    def _alternatives(self, *, depth: int) -> list[Alternative]:
        if depth > NESTING_MAX:
            self._fail_with(f"groups are nested deeper than {NESTING_MAX}")
        alternatives = [self._sequence(depth)]
        while self._take("|"):
            self._skip(lines=True)
            alternatives.append(self._sequence(depth))
        return alternatives

    def _sequence(self, depth: int) -> Alternative:
        done: list[Element] = []
        last: list[Element] = []  # what a repetition would repeat
        while self._at < len(self._text):
            following = self._text[self._at]
            if following in "*+?{":
                last = self._repeated(last)
                self._skip(lines=depth > 0)
                continue
            if (element := self._element(following, depth)) is None:
                break
            done += last
            last = element
            self._skip(lines=depth > 0)
        return tuple(done + last)

    def _element(self, following: str, depth: int) -> list[Element] | None:
        """Parse the next element; None where the sequence ends."""
        match following:
            case '"':
                return self._literal()
            case "[":
                return self._class()
            case ".":
                self._at += 1
                return self._of_ranges(_EVERYTHING)
            case "(":
                self._at += 1
                self._skip(lines=True)
                group = self._new_rule(self._alternatives(depth=depth + 1))
                if not self._take(")"):
                    self._fail("expecting )")
                return [group]
            case "<" | "!":
                self._fail_with("elements that name tokens are not supported")
            case _ if _is_name_character(following):
                return [self._number(self._name())]
        return None

    def _literal(self) -> list[Element]:
        self._at += 1
        elements: list[Element] = []
        while not self._take('"'):
            elements += self._bytes_of(self._character())
        self._spend(len(elements))
        return elements

    def _bytes_of(self, character: int) -> list[Element]:
        if 0xD800 <= character <= 0xDFFF or character > CODE_POINT_MAX:
            self._fail_with("an escape names no character")
        return [((byte, byte),) for byte in chr(character).encode()]

    def _class(self) -> list[Element]:
        self._at += 1
        inverse = self._take("^")
        ranges: list[tuple[int, int]] = []
        while not self._take("]"):
            first = last = self._character()
            if self._text[self._at : self._at + 1] == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                last = self._character()
            if last < first:
                self._fail_with("a range of characters ends before it begins")
            ranges.append((first, last))
        if not ranges:
            self._fail_with("a class of characters is empty")
        return self._of_ranges(complement(ranges) if inverse else tuple(ranges))

    def _of_ranges(self, ranges: tuple[tuple[int, int], ...]) -> list[Element]:
        """Return a set of bytes, or a rule with one alternative for each shape of UTF-8."""
        known = self._classes.get(ranges)
        if known is None:
            sequences = utf8_sequences(ranges)
            if not sequences:
                self._fail_with("a class of characters is empty")
            single = tuple(sequence[0] for sequence in sequences if len(sequence) == 1)
            longer = [tuple((part,) for part in sequence) for sequence in sequences if len(sequence) > 1]
            if not longer:
                known = [single]
            else:
                alternatives: list[Alternative] = [(single,)] if single else []
                known = [self._new_rule(alternatives + [tuple(sequence) for sequence in longer])]
            self._classes[ranges] = known
        self._spend(1)
        return known

    def _character(self) -> int:
        if self._at >= len(self._text):
            self._fail("unexpected end")
        character = self._text[self._at]
        self._at += 1
        if character != "\\":
            return ord(character)
        kind = self._text[self._at : self._at + 1]
        self._at += 1
        if kind in _HEX_ESCAPES:
            digits = self._text[self._at : self._at + _HEX_ESCAPES[kind]]
            self._at += len(digits)
            if len(digits) != _HEX_ESCAPES[kind] or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
                self._fail("expecting hexadecimal digits")
            return int(digits, 16)
        if kind not in _ESCAPES:
            self._fail("unknown escape")
        return ord(_ESCAPES[kind])

    def _repeated(self, repeated: list[Element]) -> list[Element]:
        """Apply the next repetition to `repeated`."""
        least, most = self._counts()
        if not repeated:
            self._fail("expecting something to repeat before")
        if max(least, most or 0) > REPEATS_MAX:
            self._fail_with(f"something repeats more often than {REPEATS_MAX} times")
        if most is not None and most < least:
            self._fail_with("a repetition ends before it begins")
        self._spend(len(repeated) * max(least, most or 1))
        elements = repeated * least
        if most is None:
            again = self._new_rule([])
            self._rules[again] = [(*repeated, again), ()]
            return [*elements, again]
        rest: list[Element] = []
        for _ in range(most - least):
            rest = [self._new_rule([(*repeated, *rest), ()])]
        return elements + rest

    def _counts(self) -> tuple[int, int | None]:
        sign = self._text[self._at]
        self._at += 1
        if sign != "{":
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
        self._skip(lines=False)
        least = self._integer()
        most: int | None = least
        if self._take(","):
            self._skip(lines=False)
            most = self._integer() if self._text[self._at : self._at + 1].isdecimal() else None
        if not self._take("}"):
            self._fail("expecting }")
        return least, most

    def _integer(self) -> int:
        start = self._at
        while self._at < len(self._text) and self._text[self._at] in "0123456789":
            self._at += 1
        digits = self._text[start : self._at]
        if not digits:
            self._fail("expecting a number")
        self._skip(lines=False)
        return int(digits) if len(digits) < 10 else REPEATS_MAX + 1

    def _name(self) -> str:
        start = self._at
        while self._at < len(self._text) and _is_name_character(self._text[self._at]):
            self._at += 1
        if self._at == start:
            self._fail("expecting a name")
        return self._text[start : self._at]

    def _number(self, name: str) -> int:
        if name not in self._numbers:
            self._numbers[name] = self._new_rule(None)
        return self._numbers[name]

    def _new_rule(self, alternatives: list[Alternative] | None) -> int:
        self._rules.append(alternatives)
        self._spend(1)
        if len(self._numbers) > RULES_MAX:
            self._fail_with(f"it has more than {RULES_MAX} rules")
        return len(self._rules) - 1

    def _spend(self, elements: int) -> None:
        self._elements += elements
        if self._elements > ELEMENTS_MAX:
            self._fail_with(f"it has more than {ELEMENTS_MAX} elements once its repetitions are written out")

    def _skip(self, *, lines: bool) -> None:
        """Go over blanks and comments, and over ends of lines where they mean nothing."""
        blanks = " \t\r\n" if lines else " \t"
        while self._at < len(self._text):
            if self._text[self._at] == "#":
                while self._at < len(self._text) and self._text[self._at] not in "\r\n":
                    self._at += 1
            elif self._text[self._at] in blanks:
                self._at += 1
            else:
                return

    def _take(self, expected: str) -> bool:
        if self._text.startswith(expected, self._at):
            self._at += len(expected)
            return True
        return False

    def _fail(self, reason: str) -> NoReturn:
        self._fail_with(f"{reason} at {self._text[self._at : self._at + _ERROR_TEXT_MAX]!r}")

    def _fail_with(self, reason: str) -> NoReturn:
        line = self._text.count("\n", 0, self._at) + 1
        raise InvalidRequest(f"{self._param} cannot be used: {reason} (line {line})", param=self._param)


def _is_name_character(character: str) -> bool:
    return character.isascii() and (character.isalnum() or character == "-")

"""Formats of free-text tool input as regular expressions that the grammar engine can hold. Pure."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from common.errors import InvalidRequest
from common.spec.schema_limits import PATTERN_LENGTH_MAX, check_schema
from gateway.core.request.portable_patterns import ANY_BUT_LINE_END, NotRegular, check_loop, portable, unanchored

_DEFINITION_LENGTH_MAX = 16_384
_RULES_MAX = 256
_DEPTH_MAX = 64
_CONTROLS = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f", "\v": "\\v"}
_META = frozenset("\\^$.|?*+()[]{}/")
_ANY = "[\\s\\S]"
# The part of Lark's `common` library that is regular, by its own definitions.
_COMMON = """
CR: /\\r/
LF: /\\n/
NEWLINE: (CR? LF)+
WS: /[ \\t\\f\\r\\n]/+
WS_INLINE: /[ \\t]/+
DIGIT: /[0-9]/
HEXDIGIT: /[0-9a-fA-F]/
INT: DIGIT+
SIGNED_INT: /[+-]/? INT
DECIMAL: INT "." INT? | "." INT
FLOAT: INT EXPONENT | DECIMAL EXPONENT?
EXPONENT: /[eE]/ SIGNED_INT
NUMBER: FLOAT | INT
SIGNED_NUMBER: /[+-]/? NUMBER
LCASE_LETTER: /[a-z]/
UCASE_LETTER: /[A-Z]/
LETTER: /[a-zA-Z]/
WORD: LETTER+
CNAME: /[a-zA-Z_][a-zA-Z0-9_]*/
ESCAPED_STRING: /"(?:[^"\\\\\\n]|\\\\.)*"/
"""


def input_pattern(format_: Mapping[str, object]) -> str:
    """Return the anchored pattern that is `format` of a custom tool of the type grammar.

    Raises:
        NotRegular: the grammar is recursive or too large, or uses what the engine does not hold.
    """
    match format_:
        case {"type": "grammar", "syntax": "regex", "definition": str(definition)}:
            pattern = portable(unanchored(definition))
        case {"type": "grammar", "syntax": "lark", "definition": str(definition)}:
            pattern = _lark_pattern(definition)
        case _:
            raise NotRegular("the format is unknown")
    anchored = f"^(?:{pattern})$"
    try:
        re.compile(anchored)
        check_schema({"type": "string", "pattern": anchored}, "format")
    except (re.error, InvalidRequest, OverflowError) as error:
        raise NotRegular(str(error)) from error
    return anchored


class _Token(NamedTuple):
    kind: str
    text: str


_TOKENS = re.compile(
    r"""(?P<comment>//[^\n]*|\#[^\n]*)
      |(?P<space>[ \t\r]+)
      |(?P<line>\n)
      |(?P<string>"(?:[^"\\\n]|\\.)*"i?)
      |(?P<regex>/(?:[^/\\\n]|\\.)+/[a-z]*)
      |(?P<name>[?!]*[A-Za-z_][A-Za-z0-9_]*)
      |(?P<directive>%[a-z]+)
      |(?P<number>\d+)
      |(?P<sign>\.\.|->|[:|()\[\]?*+~{},.])""",
    re.VERBOSE,
)


def _tokens(definition: str) -> Iterator[_Token]:
    at = 0
    while at < len(definition):
        found = _TOKENS.match(definition, at)
        if found is None or found.lastgroup is None:
            raise NotRegular(f"{definition[at : at + 20]!r} cannot be read")
        at = found.end()
        if found.lastgroup not in ("comment", "space"):
            yield _Token(found.lastgroup, found[0])
    yield _Token("line", "\n")


def _lark_pattern(definition: str) -> str:
    if len(definition) > _DEFINITION_LENGTH_MAX:
        raise NotRegular("the grammar is too long")
    rules = _Rules(_read(definition))
    return rules.pattern("start").text


def _read(definition: str) -> dict[str, list[_Token]]:
    """Return the tokens of each rule and terminal by its name, those of the common library included."""
    rules: dict[str, list[_Token]] = {}
    common: dict[str, list[_Token]] = {}
    for statement in _statements(definition):
        head = statement[0]
        if head.kind == "directive":
            common = common or {f"common.{name}": body for name, body in _read_common().items()}
            for name, origin in _imports(statement):
                rules[name] = [_Token("name", f"common.{origin}")]
            continue
        colon = next((place for place, token in enumerate(statement) if token.text == ":"), 0)
        priority = [token.kind for token in statement[1:colon]]
        if head.kind != "name" or not colon or priority not in ([], ["sign", "number"]):
            raise NotRegular("a statement that is no rule")
        rules[head.text.lstrip("?!")] = statement[colon + 1 :]
    if len(rules) > _RULES_MAX:
        raise NotRegular("the grammar has too many rules")
    return rules | common


def _read_common() -> dict[str, list[_Token]]:
    found = {}
    for statement in _statements(_COMMON):
        body = [_Token(t.kind, f"common.{t.text}") if t.kind == "name" else t for t in statement[2:]]
        found[statement[0].text] = body
    return found


def _statements(definition: str) -> Iterator[list[_Token]]:
    """Yield the tokens of each statement; a line that begins with | goes on with the one before it."""
    statement: list[_Token] = []
    depth = 0
    ended = False
    for token in _tokens(definition):
        if token.kind == "line":
            ended = depth == 0
            continue
        if ended and token.text != "|" and statement:
            yield statement
            statement = []
        ended = False
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(token.text, 0)
        statement.append(token)
    if statement:
        yield statement


def _imports(statement: list[_Token]) -> Iterator[tuple[str, str]]:
    """Yield the names that an import makes, and those that they have in the common library."""
    texts = [token.text for token in statement]
    match texts:
        case ["%import", "common", ".", name]:
            yield name, name
        case ["%import", "common", ".", name, "->", alias]:
            yield alias, name
        case ["%import", "common", "(", *names, ")"]:
            for name in names:
                if name != ",":
                    yield name, name
        case _:
            raise NotRegular(f"{texts[0]} is not supported")


@dataclass(frozen=True, slots=True)
class _Piece:
    """Part of a pattern; `binds`: a quantifier behind it takes all of it."""

    text: str
    binds: bool = False
    has_choice: bool = False

    @property
    def in_sequence(self) -> str:
        """The text between others."""
        return f"(?:{self.text})" if self.has_choice else self.text

    @property
    def as_atom(self) -> str:
        """The text before a quantifier."""
        return self.text if self.binds else f"(?:{self.text})"


@dataclass(slots=True)
class _Rules:
    """Expands rules into patterns; a rule that contains itself is not regular here."""

    bodies: Mapping[str, list[_Token]]
    depth: int = 0  # of groups, over all rules that are being expanded
    _known: dict[str, _Piece] = field(default_factory=dict)
    _open: list[str] = field(default_factory=list)

    def pattern(self, name: str) -> _Piece:
        """Return the pattern of a rule or a terminal."""
        if name in self._known:
            return self._known[name]
        if name not in self.bodies or name in self._open:
            raise NotRegular(f"{name} is recursive, or not there")
        self._open.append(name)
        reader = _Expansion(self, self.bodies[name])
        piece = reader.choice()
        if not reader.is_over:
            raise NotRegular(f"{name} cannot be read")
        self._open.pop()
        self._known[name] = piece
        return piece


@dataclass(slots=True)
class _Expansion:
    """Reads the right side of one rule."""

    rules: _Rules
    tokens: list[_Token]
    _at: int = 0

    @property
    def is_over(self) -> bool:
        """True behind the last token."""
        return self._at >= len(self.tokens)

    def choice(self) -> _Piece:
        """Read alternatives."""
        self.rules.depth += 1
        if self.rules.depth > _DEPTH_MAX:
            raise NotRegular("groups are nested too deep")
        alternatives = [self._sequence()]
        while self._take("|"):
            alternatives.append(self._sequence())
        self.rules.depth -= 1
        if len(alternatives) == 1:
            return alternatives[0]
        return _bounded(_Piece("|".join(one.text for one in alternatives), has_choice=True))

    def _sequence(self) -> _Piece:
        pieces: list[_Piece] = []
        while not self.is_over and self._text not in ("|", ")", "]", "->"):
            pieces.append(self._repeated(self._atom()))
        if self._take("->"):
            self._at += 1  # the name of an alias, which says nothing of the text
        if len(pieces) == 1:
            return pieces[0]
        return _bounded(_Piece("".join(piece.in_sequence for piece in pieces)))

    def _repeated(self, piece: _Piece) -> _Piece:
        if self._text in ("?", "*", "+"):
            sign = self._text
            self._at += 1
            check_loop(piece.text, sign)
            return _Piece(piece.as_atom + sign)
        if self._take("~"):
            least = most = self._number()
            if self._take(".."):
                most = self._number()
            return _Piece(f"{piece.as_atom}{{{least},{most}}}")
        return piece

    def _atom(self) -> _Piece:
        token = self.tokens[self._at]
        self._at += 1
        match token.kind:
            case "name":
                return self.rules.pattern(token.text)
            case "string":
                return self._string(token.text)
            case "regex":
                body, _, flags = token.text[1:].rpartition("/")
                if flags not in ("", "s", "u"):
                    raise NotRegular(f"the flags {flags}")
                text = portable(body, dot=_ANY if flags == "s" else ANY_BUT_LINE_END)
                is_class = re.fullmatch(r"\[[^\[\]\\]+\]", text) is not None
                return _Piece(text, binds=is_class, has_choice="|" in text)
        if token.text not in ("(", "["):
            raise NotRegular(f"{token.text} is not supported")
        inside = self.choice()
        if not self._take(")" if token.text == "(" else "]"):
            raise NotRegular("a group without end")
        return inside if token.text == "(" else _Piece(inside.as_atom + "?")

    def _string(self, token: str) -> _Piece:
        if token.endswith("i"):
            raise NotRegular("strings in either case")
        text = _unquoted(token)
        if self._text == ".." and len(text) == 1:
            self._at += 1
            last = _unquoted(self.tokens[self._at].text) if not self.is_over else ""
            self._at += 1
            if len(last) != 1:
                raise NotRegular("a range without end")
            return _Piece(f"[{_escaped(text)}-{_escaped(last)}]", binds=True)
        return _Piece(_escaped(text), binds=len(text) == 1)

    def _number(self) -> int:
        text = self._text
        self._at += 1
        if not text.isdecimal() or len(text) > 3:
            raise NotRegular("a repetition without counts")
        return int(text)

    @property
    def _text(self) -> str:
        return "" if self.is_over else self.tokens[self._at].text

    def _take(self, text: str) -> bool:
        if self._text != text:
            return False
        self._at += 1
        return True


def _bounded(piece: _Piece) -> _Piece:
    """Return the piece; rules that contain others twice would grow without end."""
    if len(piece.text) > PATTERN_LENGTH_MAX:
        raise NotRegular("the pattern is too long")
    return piece


_STRING_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", '"': '"', "\\": "\\", "/": "/", "'": "'"}


def _unquoted(token: str) -> str:
    def character(found: re.Match[str]) -> str:
        if found[1] not in _STRING_ESCAPES:
            raise NotRegular(f"the escape {found[0]}")
        return _STRING_ESCAPES[found[1]]

    return re.sub(r"\\(.)", character, token[1:-1])


def _escaped(text: str) -> str:
    return "".join(
        _CONTROLS.get(character, f"\\{character}" if character in _META else character) for character in text
    )

"""Keep what users write from becoming special tokens.

Before rendering, every special-token text inside client content is replaced by a stand-in that no client can guess and
no template changes (private-use characters: no case, no blanks, untouched by JSON). After rendering, the stand-ins
become literal segments, which the runner tokenizes without special parsing; everything else stays template text.
Images travel through a template in the same way.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from common.errors import InvalidRequest
from gateway.core.request.images import PlacedImage, RequestImage, decode_image, split_at_images

_OPEN, _CLOSE = "\ue000", "\ue001"
# Sixteen private-use characters write a number in hexadecimal.
_DIGITS = "".join(chr(0xE010 + digit) for digit in range(16))
_TO_DIGITS = str.maketrans("0123456789abcdef", _DIGITS)
_NONCE_DIGITS = 16
# Their stand-ins fill half of the largest prompt that a template may write.
HIDDEN_MAX = 2**16
# Letters that are searched at once: below a millisecond.
_SLICE = 16 * 1024
_DEPTH_MAX = 50


@dataclass(frozen=True, slots=True)
class Text:
    """Template text: special tokens in it are meant."""

    text: str


@dataclass(frozen=True, slots=True)
class Literal:
    """User text: nothing in it is special."""

    text: str


@dataclass(frozen=True, slots=True)
class Picture:
    """An image between texts, as the bytes of its file."""

    data: bytes


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Tokens that need no tokenizer."""

    ids: tuple[int, ...]


Segment = Text | Literal | Picture | TokenIds


@dataclass(frozen=True, slots=True)
class SpecialTexts:
    """Finds the texts of a vocabulary's special tokens, the longest at each place, in one pass.

    Texts that begin alike share the path through that beginning, so a place costs its own length, however many texts
    there are. The search pauses between slices, because a thread keeps the interpreter's lock while a pattern searches.
    """

    pattern: re.Pattern[str]
    length_max: int

    @classmethod
    def of(cls, special_tokens: Iterable[str]) -> "SpecialTexts | None":
        """Compile the texts; None if there is none to find."""
        texts = sorted({text for text in special_tokens if text})
        return cls(re.compile(_factored(texts, 0, 0)), max(map(len, texts))) if texts else None

    def spans(self, content: str) -> Iterator[tuple[int, int]]:
        """Yield [start, stop) of each text, in order; they do not overlap."""
        position = 0
        while position < len(content):
            # What begins in this slice ends in this window.
            stop = position + _SLICE
            match = self.pattern.search(content, position, stop + self.length_max)
            if match is None or match.start() >= stop:
                position = stop
                continue
            yield match.span()
            position = match.end()


def _factored(texts: Sequence[str], start: int, depth: int) -> str:
    """Return the expression of sorted texts behind their first `start` letters, which are equal."""
    if depth == _DEPTH_MAX:  # no real vocabulary; the compiler recurses
        return _any_of(re.escape(text[start:]) for text in reversed(texts))
    ends_here = len(texts[0]) == start
    branches = []
    for _, group in itertools.groupby(texts[ends_here:], key=lambda text: text[start]):
        alike = list(group)
        equal = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(alike[0], alike[-1], strict=False))
        common = sum(1 for _ in equal)
        branches.append(re.escape(alike[0][start:common]) + _factored(alike, common, depth + 1))
    return (_any_of(branches) + ("?" if ends_here else "")) if branches else ""


def _any_of(branches: Iterable[str]) -> str:
    return f"(?:{'|'.join(branches)})"


@dataclass(slots=True)
class LiteralGuard:
    """The stand-ins of one rendering. `nonce` is random per request, 64 bits."""

    special: SpecialTexts | None
    nonce: int
    hidden: list[str | RequestImage] = field(default_factory=list)
    _nonce_text: str = field(init=False)

    def __post_init__(self) -> None:
        """Write the nonce once: it is in every stand-in."""
        self._nonce_text = _digits_of(self.nonce, _NONCE_DIGITS)

    def hide(self, content: str) -> str:
        """Replace every special-token text in content by a stand-in.

        Raises:
            InvalidRequest: more than HIDDEN_MAX of them.
        """
        if self.special is None:
            return content
        pieces: list[str] = []
        kept = 0
        for start, stop in self.special.spans(content):
            if len(self.hidden) >= HIDDEN_MAX:
                raise InvalidRequest(f"the messages hold more than {HIDDEN_MAX} texts of special tokens")
            pieces += content[kept:start], self._keep(content[start:stop])
            kept = stop
        return "".join([*pieces, content[kept:]]) if pieces else content

    def hide_all(self, value: object) -> object:
        """Replace them in every string inside a JSON value, keys included."""
        match value:
            case str():
                return self.hide(value)
            case Mapping():
                return {self.hide(str(key)): self.hide_all(item) for key, item in value.items()}
            case list() | tuple():
                return [self.hide_all(item) for item in value]
            case _:
                return value

    def split(self, rendered: str) -> list[Segment]:
        """Split the rendered prompt into segments, in order; none is empty.

        Raises:
            InvalidRequest: an image that is none.
        """
        if not self.hidden:  # nearly always; the pattern below is another for each request
            return [Text(rendered)] if rendered else []
        segments: list[Segment] = []
        position = 0
        for match in re.finditer(f"{_OPEN}{self._nonce_text}([{_DIGITS}]+){_CLOSE}", rendered):
            if match.start() > position:
                segments.append(Text(rendered[position : match.start()]))
            found = self.hidden[_number_of(match[1])]
            segments.append(Picture(decode_image(found)) if isinstance(found, RequestImage) else Literal(found))
            position = match.end()
        if position < len(rendered):
            segments.append(Text(rendered[position:]))
        return segments

    def hide_with_images(self, content: str, images: Sequence[PlacedImage]) -> str:
        """Replace them, and put a stand-in for each image at its place."""
        pieces = split_at_images(content, images)
        return "".join(self._keep(piece) if isinstance(piece, RequestImage) else self.hide(piece) for piece in pieces)

    def _keep(self, value: str | RequestImage) -> str:
        self.hidden.append(value)
        return f"{_OPEN}{self._nonce_text}{_digits_of(len(self.hidden) - 1, 1)}{_CLOSE}"


def _digits_of(number: int, width: int) -> str:
    return f"{number:0{width}x}".translate(_TO_DIGITS)


def _number_of(digits: str) -> int:
    return int("".join(f"{_DIGITS.index(digit):x}" for digit in digits), 16)

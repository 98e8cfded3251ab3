"""Keep what users write from becoming special tokens.

Before rendering, every special-token text inside client content is replaced by a stand-in that no client can guess and
no template changes (private-use characters: no case, no blanks, untouched by JSON). After rendering, the stand-ins
become literal segments, which the runner tokenizes without special parsing; everything else stays template text.
Images travel through a template in the same way.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.core.request.images import PlacedImage, RequestImage, decode_image, split_at_images

_OPEN, _CLOSE = "\ue000", "\ue001"
# Sixteen private-use characters write a number in hexadecimal.
_DIGITS = "".join(chr(0xE010 + digit) for digit in range(16))
_NONCE_DIGITS = 16


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


def special_pattern(special_tokens: Iterable[str]) -> re.Pattern[str] | None:
    """Build a pattern that finds any special-token text, the longest first; None if there is none to find."""
    texts = sorted({text for text in special_tokens if text}, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, texts))) if texts else None


@dataclass(slots=True)
class LiteralGuard:
    """The stand-ins of one rendering. `nonce` is random per request, 64 bits."""

    pattern: re.Pattern[str] | None
    nonce: int
    hidden: list[str | RequestImage] = field(default_factory=list)

    def hide(self, content: str) -> str:
        """Replace every special-token text in content by a stand-in."""
        if self.pattern is None:
            return content
        return self.pattern.sub(lambda match: self._keep(match[0]), content)

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
        for match in re.finditer(f"{_OPEN}{self._nonce_text()}([{_DIGITS}]+){_CLOSE}", rendered):
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
        return f"{_OPEN}{self._nonce_text()}{_digits_of(len(self.hidden) - 1, 1)}{_CLOSE}"

    def _nonce_text(self) -> str:
        return _digits_of(self.nonce, _NONCE_DIGITS)


def _digits_of(number: int, width: int) -> str:
    return "".join(_DIGITS[int(digit, 16)] for digit in f"{number:0{width}x}")


def _number_of(digits: str) -> int:
    return int("".join(f"{_DIGITS.index(digit):x}" for digit in digits), 16)

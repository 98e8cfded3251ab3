"""The prompt of one request, whatever its dialect: pieces in order, as a runner reads them. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from gateway.core.dispatch.prompt_prefixes import Piece
from gateway.core.prepare.literals import Literal, Picture, Segment, Text, TokenIds

_TEXT, _LITERAL, _IDS, _MEDIA = range(4)
# An image is recognised by its size and its ends: a name is a hint, and megabytes would hold up the event loop.
_MEDIA_END_BYTES = 4096
_ID_BYTES = 4
_END_CHARACTERS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Segments for the runner, and what ends a turn of a model without a token for it. See `prompt_of`."""

    segments: tuple[Segment, ...]
    stop: tuple[str, ...] = ()
    size_bytes: int  # of all segments together
    tokens_max: float  # text bytes plus ready tokens: no prompt has more tokens than this; infinite with images

    @property
    def end(self) -> str:
        """Return the last of the template's text: it may have opened the answer's reasoning."""
        return _text_of(self.segments[-1])[-_END_CHARACTERS:] if self.segments else ""

    def pieces(self) -> Iterator[Piece]:
        """Split the prompt into the pieces that the names of its prefixes are computed from."""
        for segment in self.segments:
            match segment:
                case Text(text):
                    yield Piece(_TEXT, text.encode())
                case Literal(text):
                    yield Piece(_LITERAL, text.encode())
                case TokenIds(ids):
                    yield Piece(_IDS, b"".join(token_id.to_bytes(_ID_BYTES, "little") for token_id in ids))
                case Picture(data):
                    ends = data[:_MEDIA_END_BYTES] + data[-_MEDIA_END_BYTES:]
                    yield Piece(_MEDIA, len(data).to_bytes(8, "little") + ends)


def prompt_of(segments: Sequence[Segment], stop: tuple[str, ...] = ()) -> Prompt:
    """Make a prompt and measure it."""
    text_bytes = sum(len(_text_of(segment).encode()) for segment in segments)
    ids = sum(len(segment.ids) for segment in segments if isinstance(segment, TokenIds))
    pictures = [segment for segment in segments if isinstance(segment, Picture)]
    return Prompt(
        segments=tuple(segments),
        stop=stop,
        size_bytes=text_bytes + ids * _ID_BYTES + sum(len(picture.data) for picture in pictures),
        tokens_max=inf if pictures else text_bytes + ids,
    )


def _text_of(segment: Segment) -> str:
    return segment.text if isinstance(segment, Text | Literal) else ""

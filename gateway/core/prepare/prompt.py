"""The prompt of one request, whatever its dialect: pieces in order, as a runner reads them. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from common.spec.prompt_names import bytes_of_ids, bytes_of_image
from gateway.core.prepare.literals import Literal, Picture, Segment, Text, TokenIds

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

    def parts(self) -> Iterator[bytes]:
        """Yield the bytes that the names of its beginnings are computed from; a runner names the same ones."""
        for segment in self.segments:
            match segment:
                case Text(text) | Literal(text):
                    yield text.encode()
                case TokenIds(ids):
                    yield bytes_of_ids(ids)
                case Picture(data):
                    yield bytes_of_image(data)


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

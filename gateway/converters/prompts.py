"""Segments of a prompt as pieces that have names."""

from collections.abc import Iterable, Iterator

from gateway.core.dispatch.prompt_prefixes import Piece
from protos import runner_pb2

_TEXT, _LITERAL, _IDS, _MEDIA = range(4)
# An image is told apart by its size and its ends: a name is a hint, and megabytes would hold up the event loop.
_MEDIA_END_BYTES = 4096


def prompt_pieces(segments: Iterable[runner_pb2.Segment]) -> Iterator[Piece]:
    """What the names of a prompt's beginnings are made of."""
    for segment in segments:
        match segment.WhichOneof("kind"):
            case "text":
                yield Piece(_TEXT, segment.text.encode())
            case "literal":
                yield Piece(_LITERAL, segment.literal.encode())
            case "token_ids":
                yield Piece(_IDS, b"".join(token_id.to_bytes(4, "little") for token_id in segment.token_ids.ids))
            case "media":
                data = segment.media.data
                ends = data[:_MEDIA_END_BYTES] + data[-_MEDIA_END_BYTES:]
                yield Piece(_MEDIA, len(data).to_bytes(8, "little") + ends)

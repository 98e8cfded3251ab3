"""Prompt segments to inputs, exactly as one text would be read, except that user text names no control token."""

from collections.abc import Callable, Iterable, Sequence

from common.errors import InvalidRequest
from common.image_file import check_image_count
from common.spec.prompt_names import bytes_of_ids, bytes_of_image
from protos import runner_pb2
from runner.core.sequence.media import PreparedImage
from runner.core.sequence.requests import TokenizedPrompt
from runner.core.sequence.sequence_names import SequenceNames
from runner.engine.contract.engine import TokenTable, refuse_image

# Stands in for the text before a segment; no vocabulary merges a line break into the word behind it.
_BEFORE = b"\n"


def tokenize_prompt(
    segments: Sequence[runner_pb2.Segment],
    *,
    add_bos: bool,
    vocabulary: TokenTable,
    read_image: Callable[[bytes], PreparedImage] = refuse_image,
) -> TokenizedPrompt:
    """Tokenize the segments one by one and join them; add the begin token where the model wants one and none is there.

    Raises:
        InvalidRequest: a segment without content kind, an id outside of the vocabulary, or an image that is none.
        UnsupportedCapability: an image for a model that sees none.
    """
    ids: list[int] = []
    boundaries: list[int] = []
    images: list[PreparedImage] = []
    check_image_count(sum(segment.HasField("media") for segment in segments))
    for segment in segments:
        match segment.WhichOneof("kind"):
            case "text":
                ids += _tokenize(segment.text, ids, vocabulary, parse_special=True)
            case "literal":
                boundaries.append(len(ids))
                ids += _tokenize(segment.literal, ids, vocabulary, parse_special=False)
            case "token_ids":
                check_ids(segment.token_ids.ids, vocabulary)
                ids += segment.token_ids.ids
            case "media":
                images.append(read_image(segment.media.data))
                ids += images[-1].inputs
            case None:
                raise InvalidRequest("a segment needs text, literal, token_ids or media", param="prompt")
    if add_bos and vocabulary.adds_bos and ids[:1] != [vocabulary.bos]:
        ids.insert(0, vocabulary.bos)
        boundaries = [place + 1 for place in boundaries]
    return TokenizedPrompt(tuple(ids), tuple(boundaries), tuple(images))


def name_sequence(
    segments: Sequence[runner_pb2.Segment], prompt: TokenizedPrompt, vocabulary: TokenTable, *, salt: str
) -> SequenceNames:
    """Name the beginnings of a prompt, as a gateway names them."""
    is_text = all(segment.WhichOneof("kind") in ("text", "literal") for segment in segments)
    pieces = [vocabulary.pieces[token_id] for token_id in prompt.inputs] if is_text else None
    return SequenceNames(map(_named_bytes, segments), salt=salt, pieces=pieces, inputs=len(prompt.inputs))


def _named_bytes(segment: runner_pb2.Segment) -> bytes:
    match segment.WhichOneof("kind"):
        case "token_ids":
            return bytes_of_ids(segment.token_ids.ids)
        case "media":
            return bytes_of_image(segment.media.data)
        case _:
            return (segment.text or segment.literal).encode()


def check_ids(ids: Iterable[int], vocabulary: TokenTable) -> None:
    """Refuse ids that the vocabulary does not have.

    Raises:
        InvalidRequest: names the first one.
    """
    for token_id in ids:
        if token_id >= vocabulary.size:
            raise InvalidRequest(f"token {token_id} is outside of the vocabulary of {vocabulary.size}", param="ids")


def _tokenize(text: str, before: list[int], vocabulary: TokenTable, *, parse_special: bool) -> list[int]:
    """Token ids of a text that follows other inputs.

    SentencePiece vocabularies put a space in front of every text they are given, and of one behind a control token or
    an image. In the middle of a sentence it would be a space that is not in the text, so the text is read there behind
    a line break.
    """
    data = text.encode()
    ids = vocabulary.tokenize(data, parse_special=parse_special)
    if not before or before[-1] < 0 or before[-1] in vocabulary.control or not ids:
        return ids
    if vocabulary.detokenize(ids) != b" " + data:
        return ids
    lead = vocabulary.tokenize(_BEFORE, parse_special=parse_special)
    joined = vocabulary.tokenize(_BEFORE + data, parse_special=parse_special)
    return joined[len(lead) :] if joined[: len(lead)] == lead else ids

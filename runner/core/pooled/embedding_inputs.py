"""Decide which tokens of an input are embedded when it is longer than the context. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from common.errors import InvalidRequest
from runner.core.sequence.truncation import EMPTY, too_long

NOTHING_LEFT = "input after truncation exceeds maximum context length"


@dataclass(frozen=True, slots=True)
class Frame:
    """Tokens that a vocabulary puts around every input: begin before it, end or separator behind it."""

    head: tuple[int, ...] = ()
    tail: tuple[int, ...] = ()


def frame_input(ids: Sequence[int], *, frame: Frame, context_tokens: int, truncate: bool) -> tuple[int, ...]:
    """Return the tokens to evaluate: the first ones of the input that fit, inside the frame.

    An input that brings a part of the frame along does not get it twice, and never loses it to the cut.

    Args:
        ids: the input's tokens.
        frame: what the vocabulary adds.
        context_tokens: the least of the runner's, the trained and the asked context.
        truncate: False refuses instead of cutting.

    Raises:
        InvalidRequest: nothing to evaluate, or the frame alone fills the context.
        PromptTooLong: longer than the context and `truncate` is off.
    """
    content = _without_frame(ids, frame)
    frame_tokens = len(frame.head) + len(frame.tail)
    if not content and not frame_tokens:
        raise InvalidRequest(EMPTY, param="input")
    if (tokens := len(content) + frame_tokens) > context_tokens:
        if not truncate:
            raise too_long(tokens, context_tokens, param="input")
        content = cut_head(content, limit=context_tokens - frame_tokens, param="input")
    return (*frame.head, *content, *frame.tail)


def cut_head(ids: Sequence[int], *, limit: int, param: str) -> Sequence[int]:
    """Return the first `limit` tokens of something that is too long.

    Raises:
        InvalidRequest: no room for a single one.
    """
    if limit <= 0:
        raise InvalidRequest(NOTHING_LEFT, param=param)
    return ids[:limit]


def _without_frame(ids: Sequence[int], frame: Frame) -> Sequence[int]:
    if frame.head and tuple(ids[: len(frame.head)]) == frame.head:
        ids = ids[len(frame.head) :]
    if frame.tail and tuple(ids[-len(frame.tail) :]) == frame.tail:
        ids = ids[: -len(frame.tail)]
    return ids

"""Decide how a prompt that is longer than the context is cut. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from common.errors import InvalidRequest, PromptTooLong

TOO_LONG = "the input length exceeds the context length"
EMPTY = "no input provided"


def too_long(tokens: int, context_tokens: int, *, param: str) -> PromptTooLong:
    """Return the refusal of an input that may not be cut. Gateways read both numbers from the text."""
    return PromptTooLong(f"{TOO_LONG}: {tokens} tokens > {context_tokens} maximum", param=param)


@dataclass(frozen=True, slots=True)
class Group:
    """Inputs [start, stop) that must stay together, for example the rows of one image."""

    start: int
    stop: int


def truncate_prompt(
    prompt: Sequence[int], *, context_tokens: int, kept_tokens: int, truncate: bool, groups: Sequence[Group] = ()
) -> list[int]:
    """Return the prompt, cut to the kept head and the newest tail if it is longer than the context.

    Args:
        prompt: token ids (or pseudo ids of media rows).
        context_tokens: limit of the sequence.
        kept_tokens: head that stays (`kept_head_tokens`).
        truncate: False refuses instead of cutting.
        groups: inputs that are never split, in order.

    Raises:
        InvalidRequest: empty prompt, or nothing would be left, or a group begins inside the kept head and cannot stay.
        PromptTooLong: longer than the context and `truncate` is off.
    """
    if not prompt:
        raise InvalidRequest(EMPTY, param="prompt")
    if len(prompt) <= context_tokens:
        return list(prompt)
    if not truncate:
        raise too_long(len(prompt), context_tokens, param="prompt")
    tail_start = kept_tokens + len(prompt) - context_tokens
    for group in groups:
        if group.start < kept_tokens < group.stop:
            raise InvalidRequest("a group of inputs that belong together begins inside the kept head", param="prompt")
        if group.start < tail_start < group.stop:
            tail_start = group.stop
    if tail_start >= len(prompt):
        raise InvalidRequest("entire prompt removed by truncation", param="prompt")
    return [*prompt[:kept_tokens], *prompt[tail_start:]]

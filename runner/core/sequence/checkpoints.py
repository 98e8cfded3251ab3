"""Decide where a memory that cannot go back is saved, and which save a new prompt goes on from. Pure.

A recurrent state, or a sliding window that has moved on, cannot be cut back to an earlier input. A checkpoint is a copy
of it as it was after so many inputs.
"""

from collections.abc import Iterable, Sequence

# The end of a prompt is what the next turn's template changes first (a thinking marker, the assistant's header), so the
# last save lies this far before it. Source: llama-server.
BEFORE_END_TOKENS = 4
# Closer saves would cost more to take than the inputs between them cost to compute.
SPACING_TOKENS_MIN = 64
CHECKPOINTS_MAX = 8  # of one slot


def plan_checkpoints(*, held_tokens: int, prompt_tokens: int, boundaries: Iterable[int]) -> tuple[int, ...]:
    """After how many inputs to save while a prompt is evaluated, in order.

    Args:
        held_tokens: inputs that the slot has already.
        prompt_tokens: inputs that it will have at the prompt's end.
        boundaries: where the user's texts begin; a next prompt often differs from there on.
    """
    end = prompt_tokens - BEFORE_END_TOKENS
    chosen: list[int] = []
    for place in sorted({*boundaries, end}):
        if not held_tokens < place < prompt_tokens:
            continue
        if chosen and place - chosen[-1] < SPACING_TOKENS_MIN and place != end:
            continue
        chosen.append(place)
    return tuple(chosen[-CHECKPOINTS_MAX:])


def best_checkpoint(checkpoints: Sequence[int], *, prefix_tokens: int) -> int:
    """Return the latest save within a common prefix; 0 if there is none."""
    return max((tokens for tokens in checkpoints if tokens <= prefix_tokens), default=0)


def surplus_checkpoints(checkpoints: Sequence[int]) -> tuple[int, ...]:
    """Return the surplus saves of one slot: the middle ones closest to their neighbours."""
    kept = sorted(checkpoints)
    gone: list[int] = []
    while len(kept) > CHECKPOINTS_MAX:
        gaps = [(kept[index + 1] - kept[index - 1], kept[index]) for index in range(1, len(kept) - 1)]
        _, place = min(gaps)
        kept.remove(place)
        gone.append(place)
    return tuple(gone)

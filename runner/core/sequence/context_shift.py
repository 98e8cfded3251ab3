"""Decide what a full context forgets. Pure: numbers in, a plan out.

Positions are token indices of one sequence; ranges are half-open [start, stop).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from common.errors import InvalidRequest
from runner.core.sequence.inputs import groups_in
from runner.core.sequence.truncation import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextShift:
    """Drop [drop_start, drop_stop); what follows moves down to drop_start."""

    drop_start: int
    drop_stop: int
    moves: bool  # True: what follows is renumbered; False: evaluated again, the memory cannot move these cells


def kept_head_tokens(*, keep_tokens: int, prompt_tokens: int, context_tokens: int, adds_bos: bool) -> int:
    """Return the number of inputs at the start that no shift and no cut may drop; at least one input stays droppable.

    Args:
        keep_tokens: as the request says; negative means the whole prompt.
        prompt_tokens: length of the prompt before any cut.
        context_tokens: limit of the sequence.
        adds_bos: whether the vocabulary adds a begin token; it is kept on top.
    """
    kept = prompt_tokens if keep_tokens < 0 else keep_tokens
    return min(kept + (1 if adds_bos else 0), context_tokens - 1)


def whole_head_tokens(kept_tokens: int, *, context_tokens: int, groups: Sequence[Group]) -> int:
    """Round the kept head to whole groups: with all of the last one if that leaves room, else with none of it."""
    for group in groups:
        if group.start < kept_tokens < group.stop:
            return group.stop if group.stop < context_tokens else group.start
    return kept_tokens


def discarded_tokens(*, held_tokens: int, context_tokens: int, kept_tokens: int, groups: Sequence[Group] = ()) -> int:
    """Return the number of inputs to drop after the kept head, so that half of the rest is free.

    A group that begins in what goes, goes whole.

    Raises:
        InvalidRequest: the kept head fills the context.
    """
    if kept_tokens >= context_tokens:
        raise InvalidRequest(
            f"unable to shift context - keep exceeds context (keep: {kept_tokens} context: {context_tokens})"
        )
    wanted = max((context_tokens - kept_tokens) // 2, 1)
    discarded = max(0, wanted - (context_tokens - held_tokens))
    if discarded:
        for group in groups:
            if group.start < kept_tokens + discarded < group.stop:
                return group.stop - kept_tokens
    return discarded


def plan_context_shift(
    *,
    held_tokens: int,
    context_tokens: int,
    kept_tokens: int,
    can_move: bool,
    shared_tokens: int = 0,
    groups: Sequence[Group] = (),
) -> ContextShift | None:
    """Return what to drop so that generation can go on, or None while there is room.

    Args:
        held_tokens: inputs in the cache.
        context_tokens: limit of the sequence.
        kept_tokens: head that stays (`kept_head_tokens`).
        can_move: whether the engine's memory can renumber positions.
        shared_tokens: inputs at the start whose cells another slot uses too. Moving such a cell would move it there as
            well, so a range that reaches into them is computed again instead.
        groups: held inputs that belong together, in order; none reaches from the kept head beyond it.

    Raises:
        InvalidRequest: the kept head fills the context.
    """
    discarded = discarded_tokens(
        held_tokens=held_tokens, context_tokens=context_tokens, kept_tokens=kept_tokens, groups=groups
    )
    if discarded == 0:
        return None
    drop_stop = kept_tokens + discarded
    return ContextShift(
        drop_start=kept_tokens,
        drop_stop=drop_stop,
        moves=can_move and shared_tokens <= drop_stop,
    )


def replay_context(
    prompt: Sequence[int], resumed: Sequence[int], *, context_tokens: int, kept_tokens: int, shift: bool
) -> list[int]:
    """Return the inputs that the cache of the first runner held after it had generated `resumed`, shifts included.

    The newest resumed token was sampled but not yet evaluated there, so it is the last input here and causes no shift.
    Without `shift` a full context ends the sequence; what the first runner then held is the whole.
    """
    inputs = [*prompt, *resumed]
    if not shift or len(inputs) <= context_tokens:
        return inputs
    held = list(prompt)
    for token_id in resumed:
        if len(held) >= context_tokens:
            discarded = discarded_tokens(
                held_tokens=len(held), context_tokens=context_tokens, kept_tokens=kept_tokens, groups=groups_in(held)
            )
            del held[kept_tokens : kept_tokens + discarded]
        held.append(token_id)
    return held

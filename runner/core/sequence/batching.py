"""Decide which inputs of which sequences go into the next decode call. Pure.

Generating sequences get their one token first, prompt chunks share the rest in turn.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Demand(NamedTuple):
    """What one sequence could add. A named tuple, because one is made per sequence and step."""

    key: int  # names the sequence in the plan
    pending_tokens: int  # inputs that are not in the cache yet, >= 1
    room_tokens: int  # context limit minus inputs held
    generating: bool  # its one pending input is the token sampled last
    # Lengths of the indivisible units that the pending inputs begin with; empty: every input stands alone.
    unit_tokens: tuple[int, ...] = ()


class BatchRow(NamedTuple):
    """The first pending inputs of one sequence; `complete` if none stays pending, so that logits are wanted."""

    key: int
    tokens: int
    complete: bool


class BatchPlan(NamedTuple):
    """One decode call. `full` names sequences that need a context shift before they can add anything."""

    rows: tuple[BatchRow, ...]
    full: tuple[int, ...]
    next_start: int  # key from which the next plan goes round


def plan_batch(demands: Sequence[Demand], *, batch_tokens: int, start: int) -> BatchPlan:
    """Choose the rows of one decode call.

    The first sequence that could add nothing starts the next plan, else the one after the last visited; later ones
    still use the room that is left.

    Args:
        demands: every sequence that has pending inputs, in the order of their keys.
        batch_tokens: most inputs of all sequences together. One unit that is larger widens its batch, alone in it.
        start: the first key at or after this one is visited first; `next_start` of the previous plan.
    """
    rows: list[BatchRow] = []
    full: list[int] = []
    free = batch_tokens
    split = next((index for index, demand in enumerate(demands) if demand.key >= start), 0)
    order = [*demands[split:], *demands[:split]]
    left_out: int | None = None
    last_visited = start
    for generating in (True, False):
        for demand in order:
            if demand.generating is not generating:
                continue
            if demand.room_tokens < 1:
                full.append(demand.key)
                continue
            last_visited = demand.key
            taken = _taken_tokens(demand, free=free, batch_is_empty=not rows)
            if taken == 0:
                left_out = demand.key if left_out is None else left_out
                continue
            free = max(0, free - taken)
            rows.append(BatchRow(demand.key, taken, taken == demand.pending_tokens))
    next_start = left_out if left_out is not None else last_visited + 1
    return BatchPlan(tuple(rows), tuple(full), next_start)


def _taken_tokens(demand: Demand, *, free: int, batch_is_empty: bool) -> int:
    """How many pending inputs of one sequence fit, without splitting a unit and without passing its context limit."""
    if not demand.unit_tokens:
        return min(demand.pending_tokens, demand.room_tokens, free)
    taken = 0
    for unit in demand.unit_tokens:
        if taken + unit > demand.room_tokens:
            break
        if taken + unit > free and not (batch_is_empty and taken == 0):
            break
        taken += unit
    else:
        loose = demand.pending_tokens - taken
        taken += max(0, min(loose, demand.room_tokens - taken, free - taken))
    return taken

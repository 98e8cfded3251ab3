"""Decide which inputs of which sequences go into the next decode call. Pure.

Generating sequences get their one token first, prompt chunks share the rest in turn.
"""

from collections.abc import Sequence
from typing import NamedTuple


class BatchRow(NamedTuple):
    """Inputs of one sequence in a decode call. A named tuple, because one is made per sequence and step."""

    key: int  # names the sequence in the plan
    pending_tokens: int  # inputs that are not in the cache yet, >= 1
    room_tokens: int  # context limit minus inputs held
    generating: bool  # its one pending input is the token sampled last
    # Lengths of the indivisible units that the pending inputs begin with; empty: every input stands alone.
    unit_tokens: tuple[int, ...] = ()
    tokens: int = 0  # how many of the pending inputs the plan takes, the first ones

    @property
    def complete(self) -> bool:
        """Return True if no input stays pending, so that logits are wanted."""
        return self.tokens == self.pending_tokens


class BatchPlan(NamedTuple):
    """One decode call. `full` names sequences that need a context shift before they can add anything."""

    rows: tuple[BatchRow, ...]
    full: tuple[int, ...]
    next_start: int  # key from which the next plan goes round


def plan_batch(wanted: Sequence[BatchRow], *, batch_tokens: int, start: int) -> BatchPlan:
    """Choose the rows of one decode call, and how many tokens each takes.

    The first sequence that could add nothing starts the next plan, else the one after the last visited; later ones
    still use the room that is left.

    Args:
        wanted: a row of every sequence that has pending inputs, in the order of their keys.
        batch_tokens: most inputs of all sequences together. One unit that is larger widens its batch, alone in it.
        start: the first key at or after this one is visited first; `next_start` of the previous plan.
    """
    rows: list[BatchRow] = []
    full: list[int] = []
    free = batch_tokens
    split = next((index for index, row in enumerate(wanted) if row.key >= start), 0)
    order = [*wanted[split:], *wanted[:split]]
    left_out: int | None = None
    last_visited = start
    for generating in (True, False):
        for row in order:
            if row.generating is not generating:
                continue
            if row.room_tokens < 1:
                full.append(row.key)
                continue
            last_visited = row.key
            taken = _taken_tokens(row, free=free, batch_is_empty=not rows)
            if taken == 0:
                left_out = row.key if left_out is None else left_out
                continue
            free = max(0, free - taken)
            rows.append(row._replace(tokens=taken))
    next_start = left_out if left_out is not None else last_visited + 1
    return BatchPlan(tuple(rows), tuple(full), next_start)


def _taken_tokens(row: BatchRow, *, free: int, batch_is_empty: bool) -> int:
    """Count the pending inputs of one sequence that fit, without splitting a unit or passing its context limit."""
    if not row.unit_tokens:
        return min(row.pending_tokens, row.room_tokens, free)
    taken = 0
    for unit in row.unit_tokens:
        if taken + unit > row.room_tokens:
            break
        if taken + unit > free and not (batch_is_empty and taken == 0):
            break
        taken += unit
    else:
        loose = row.pending_tokens - taken
        taken += max(0, min(loose, row.room_tokens - taken, free - taken))
    return taken

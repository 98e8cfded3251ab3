"""Suggestion of the closest known name for a misspelt one. Pure."""

from collections.abc import Collection
from difflib import get_close_matches


def nearest(written: str, known: Collection[str]) -> str | None:
    """Return the known name that is most similar; None: none is similar enough."""
    return next(iter(get_close_matches(written, known, n=1)), None)


def did_you_mean(written: str, known: Collection[str], *, else_say: str = "") -> str:
    """Return the end of an error text: the nearest known name; `else_say` if there is none."""
    meant = nearest(written, known)
    return f"; did you mean {meant}?" if meant else else_say and f"; {else_say}"

"""What somebody meant who wrote a name that there is not. Pure."""

from collections.abc import Collection
from difflib import get_close_matches


def did_you_mean(written: str, known: Collection[str], *, else_say: str = "") -> str:
    """The end of a sentence that refuses a name: the nearest right one; `else_say` where none is near."""
    near = get_close_matches(written, known, n=1)
    return f"; did you mean {near[0]}?" if near else else_say and f"; {else_say}"

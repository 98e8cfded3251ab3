"""What somebody meant who wrote a name that there is not. Pure."""

from collections.abc import Collection
from difflib import get_close_matches


def nearest(written: str, known: Collection[str]) -> str | None:
    """The right name that is most like it; None: none is near."""
    return next(iter(get_close_matches(written, known, n=1)), None)


def did_you_mean(written: str, known: Collection[str], *, else_say: str = "") -> str:
    """The end of a sentence that refuses a name: the nearest right one; `else_say` where none is near."""
    meant = nearest(written, known)
    return f"; did you mean {meant}?" if meant else else_say and f"; {else_say}"

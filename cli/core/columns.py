"""Which columns of a table a terminal has room for. Pure."""

from collections.abc import Sequence

GAP = 2


def fitting_columns(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, width: int, spare: Sequence[str]
) -> list[int]:
    """Places of the columns that are shown: `spare` ones are left out, the first first, until each line fits.

    Words that are cut into pieces by folding say less than a column that is not there.
    """
    widths = [max(len(line[column]) for line in (headings, *rows)) for column in range(len(headings))]
    shown = list(range(len(headings)))
    for name in spare:
        if sum(widths[column] for column in shown) + GAP * (len(shown) - 1) <= width:
            break
        shown.remove(headings.index(name))
    return shown

"""Tables: framed by colour on a terminal, plain columns in a pipe, JSON on demand."""

import json
import sys
from collections.abc import Sequence
from typing import Any

_COLUMN_GAP = "  "


def print_json(value: Any) -> None:
    """One JSON document."""
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")


def print_answer(answer: Any, text: str, *, as_json: bool) -> None:
    """Print what the server answered: as JSON, or in words."""
    if as_json:
        print_json(answer)
    else:
        print(text, flush=True)


def print_listing(
    answer: Any, headings: Sequence[str], rows: Sequence[Sequence[str]], *, as_json: bool, spare: Sequence[str] = ()
) -> None:
    """Print what the server answered: as JSON, or its rows."""
    if as_json:
        print_json(answer)
    else:
        print_table(headings, rows, spare=spare)


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, spare: Sequence[str] = ()) -> None:
    """Rows under their headings. A terminal that is too narrow goes without the `spare` columns, the first first."""
    from rich.console import Console  # noqa: PLC0415  # not every command prints a table
    from rich.table import Table  # noqa: PLC0415

    console = Console(markup=False)  # names of files have brackets
    if not console.is_terminal:
        sys.stdout.writelines(line + "\n" for line in plain_lines(headings, rows))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    shown = fitting_columns(headings, rows, width=console.width, spare=spare)
    for column in shown:
        table.add_column(headings[column], overflow="fold")
    for row in rows:
        table.add_row(*(row[column] for column in shown))
    console.print(table)


def fitting_columns(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, width: int, spare: Sequence[str]
) -> list[int]:
    """Places of the columns that are shown: `spare` ones are left out, the first first, until each line fits.

    Words that are cut into pieces by folding say less than a column that is not there.
    """
    widths = [max(len(line[column]) for line in (headings, *rows)) for column in range(len(headings))]
    shown = list(range(len(headings)))
    for name in spare:
        if sum(widths[column] for column in shown) + len(_COLUMN_GAP) * (len(shown) - 1) <= width:
            break
        shown.remove(headings.index(name))
    return shown


def plain_lines(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns padded to their widest cell, so that people and awk can read them; an empty cell is a dash."""
    lines = [headings, *([cell or "-" for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return [
        _COLUMN_GAP.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    ]


def print_sections(found: Sequence[tuple[str, Sequence[tuple[str, str]]]]) -> None:
    """Titles with rows of a label and a value; a section without a title is only rows."""
    from rich.console import Console  # noqa: PLC0415  # as above

    console = Console(highlight=False, soft_wrap=True)
    for position, (title, rows) in enumerate(found):
        if position:
            console.print()
        if title:
            console.print(title, style="bold", markup=False)
        width = max((len(label) for label, _ in rows), default=0)
        for label, value in rows:
            console.print(f"  {label.ljust(width)}  {value}".rstrip(), markup=False)

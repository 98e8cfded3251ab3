"""`puna bench`, `top` and `doctor`."""

import typer


def register(app: typer.Typer) -> None:
    """Give the program these commands."""

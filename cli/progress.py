"""Progress of long work: bars on a terminal, lines in a pipe, JSON with `--json`."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from cli.core.news import DONE, PlainNews, bar_of, load_text, store_text

News = Mapping[str, Any]
Report = Callable[[News], None]


def _print_json(news: News) -> None:
    """Print the event as the server sent it."""
    print(json.dumps(news), flush=True)


def _lines() -> Report:
    """Print a line for each step."""
    plain = PlainNews()

    def report(news: News) -> None:
        for line in plain.lines(news):
            print(line, flush=True)

    return report


def _bars(progress: Progress) -> Report:
    """Show a bar for each blob, a line for everything else."""
    tasks: dict[tuple[str, str], TaskID] = {}
    said = ""

    def report(news: News) -> None:
        nonlocal said
        bar, status = bar_of(news), store_text(news)
        if bar is None:
            if status != said:
                progress.console.print(status, markup=False, highlight=False)
            said = status
            return
        key = bar.key, bar.text
        if key not in tasks:
            tasks[key] = progress.add_task(bar.text, total=bar.total_bytes)
        progress.update(tasks[key], completed=bar.done_bytes)

    return report


@contextmanager
def store_reporter(*, as_json: bool) -> Iterator[Report]:
    """Choose the output of events in the form of POST /api/pull, and keep it open for the duration of the work."""
    console = Console(file=sys.stdout)
    if as_json:
        yield _print_json
    elif console.is_terminal:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console) as progress:
            yield _bars(progress)
    else:
        yield _lines()


@contextmanager
def load_reporter(model: str, *, as_json: bool) -> Iterator[Report]:
    """Choose the output of a load's progress: a bar on a terminal, a line for each step in a pipe."""
    console = Console(file=sys.stdout, highlight=False)
    if as_json:
        yield _print_json
    elif console.is_terminal:
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console) as progress:
            task = progress.add_task(f"{model}: asked", total=None)

            def draw(news: News) -> None:
                fraction = 1.0 if news.get("status") in DONE else news.get("fraction")
                total = None if fraction is None else 1.0
                progress.update(task, description=f"{model}: {load_text(news)}", total=total, completed=fraction or 0)

            yield draw
    else:
        said: list[str] = []

        def say(news: News) -> None:
            if (text := load_text(news)) not in said[-1:]:
                said.append(text)
                print(text, flush=True)

        yield say

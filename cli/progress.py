"""Progress of long work: bars on a terminal, lines in a pipe, JSON with `--json`."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

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

from cli.core.load_news import DONE, load_text
from cli.core.store_news import PlainNews, bar_of


class ProgressReporter(Protocol):
    """A consumer of events in the form of POST /api/pull: status, digest, total, completed."""

    def report(self, news: Mapping[str, Any]) -> None:
        """Report an event."""


class _Bars:
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[tuple[str, str], TaskID] = {}
        self._said = ""

    def report(self, news: Mapping[str, Any]) -> None:
        """Show a bar for each blob, a line for everything else."""
        bar, status = bar_of(news), str(news.get("status", ""))
        if bar is None:
            if status != self._said:
                self._progress.console.print(status, markup=False, highlight=False)
            self._said = status
            return
        key = bar.key, bar.text
        if key not in self._tasks:
            self._tasks[key] = self._progress.add_task(bar.text, total=bar.total_bytes)
        self._progress.update(self._tasks[key], completed=bar.done_bytes)


class _Lines:
    def __init__(self) -> None:
        self._plain = PlainNews()

    def report(self, news: Mapping[str, Any]) -> None:
        """Print a line for each step."""
        for line in self._plain.lines(news):
            print(line, flush=True)


class _Json:
    @staticmethod
    def report(news: Mapping[str, Any]) -> None:
        """Print the event as the server sent it."""
        print(json.dumps(news), flush=True)


@contextmanager
def progress_reporter(*, as_json: bool) -> Iterator[ProgressReporter]:
    """Choose the output of progress, and keep it open for the duration of the work."""
    if as_json:
        yield _Json()
        return
    console = Console(file=sys.stdout)
    if not console.is_terminal:
        yield _Lines()
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        yield _Bars(progress)


@contextmanager
def load_reporter(model: str, *, as_json: bool) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Choose the output of a load's progress: a bar on a terminal, a line for each step in a pipe."""
    console = Console(file=sys.stdout, highlight=False)
    if as_json:
        yield _Json.report
    elif console.is_terminal:
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console) as progress:
            task = progress.add_task(f"{model}: asked", total=None)

            def draw(news: Mapping[str, Any]) -> None:
                fraction = 1.0 if news.get("status") in DONE else news.get("fraction")
                total = None if fraction is None else 1.0
                progress.update(task, description=f"{model}: {load_text(news)}", total=total, completed=fraction or 0)

            yield draw
    else:
        said: list[str] = []

        def say(news: Mapping[str, Any]) -> None:
            if (text := load_text(news)) not in said[-1:]:
                said.append(text)
                print(text, flush=True)

        yield say

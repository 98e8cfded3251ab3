"""`puna top`: the cluster as it is now, redrawn as it changes.

The screen has a headline, devices as bars, models and requests, and is cut to the height of the terminal.
"""

import os
import queue
import select
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console, ConsoleDimensions, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cli.core.cluster_view import ClusterItems
from cli.core.formatting import format_bytes
from cli.core.top_rows import (
    DEVICE_HEADINGS,
    MODEL_HEADINGS,
    REQUEST_HEADINGS,
    DeviceUse,
    bar,
    device_uses,
    headline,
    model_rows,
    request_rows,
    spark_line,
)
from cli.errors import CommandFailed, ExitCode
from cli.output import print_json, print_table
from cli.server import Server

_MODELS, _OTHERS, _FREE = "green", "yellow", "bright_black"
_BAR_MIN, _BAR_MAX = 10, 60
# Beside the rows of the three tables: head, chart, legend, headings, empty lines, foot.
_FIXED_LINES = 11
_PATH = "/puna/v1/events"
# The gateway breaks its silence every five seconds.
_SILENCE_S = 12.0
_COMPLETE_WITHIN_S = 5.0
_DRAW_S = 0.5
_AGAIN_AFTER_S = 1.0
_NEWS_MAX = 256
_LEAVE = frozenset({"q", "Q", "\x1b", "\x04"})
_News = tuple[str, dict[str, Any]] | CommandFailed


def top(*, once: bool, every_model: bool, as_json: bool) -> None:
    """Show the cluster until the user leaves; once, or where no terminal is, its state after a second.

    Raises:
        CommandFailed: no server at the start, or its key is refused.
    """
    server = Server.of()
    console = Console(highlight=False)
    if once or as_json or not console.is_terminal or not sys.stdin.isatty():
        view = _complete_view(server)
        if as_json:
            print_json(view.as_json(server.url))
        else:
            _print(view, every_model=every_model)
        return
    _watch(server, console, every_model=every_model)


def _complete_view(server: Server) -> ClusterItems:
    view = ClusterItems()
    deadline_s = time.monotonic() + _COMPLETE_WITHIN_S
    for event, data in server.events(_PATH, silence_s=_SILENCE_S):
        view.apply_event(event, data)
        if view.is_complete or time.monotonic() > deadline_s:
            return view
    raise CommandFailed(f"{server.url} ended the stream", ExitCode.UNREACHABLE)


def _print(view: ClusterItems, *, every_model: bool) -> None:
    print(headline(view))
    if error := view.status.get("scheduler_error"):
        print(f"the scheduler is away: {error}")
    print()
    print_table(DEVICE_HEADINGS, [use.row() for use in device_uses(view)])
    print()
    print_table(MODEL_HEADINGS, model_rows(view, idle_too=every_model))


def _watch(server: Server, console: Console, *, every_model: bool) -> None:
    news: queue.Queue[_News] = queue.Queue(_NEWS_MAX)
    wake_reader, wake_writer = os.pipe()
    threading.Thread(target=_listen, args=(server, news, wake_writer), daemon=True, name="events").start()
    view, trouble = ClusterItems(), ""
    first = news.get()
    if isinstance(first, CommandFailed):
        raise first
    view.apply_event(*first)
    # Ctrl-C leaves whenever it comes, also while the screen is drawn.
    with suppress(KeyboardInterrupt), _keys(), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            size = console.size
            live.update(draw(view, server.url, size, trouble=trouble, idle_too=every_model), refresh=True)
            ready, _, _ = select.select([sys.stdin, wake_reader], [], [], _DRAW_S)
            if sys.stdin in ready and _leaves():
                return
            if wake_reader in ready:
                os.read(wake_reader, _NEWS_MAX)
            with suppress(queue.Empty):
                while True:
                    one = news.get_nowait()
                    if isinstance(one, CommandFailed):
                        trouble = str(one)
                    else:
                        trouble = ""
                        view.apply_event(*one)


def _listen(server: Server, news: "queue.Queue[_News]", wake: int) -> None:
    """In a thread of its own: hand on every event; come again when the stream breaks. Ends with the program."""
    while True:
        try:
            for one in server.events(_PATH, silence_s=_SILENCE_S):
                if one[0] != "end":
                    news.put(one)
                    os.write(wake, b"1")
            trouble = CommandFailed(f"{server.url} ended the stream; asking again", ExitCode.UNREACHABLE)
        except CommandFailed as error:
            trouble = error
        news.put(trouble)
        os.write(wake, b"1")
        time.sleep(_AGAIN_AFTER_S)


def _leaves() -> bool:
    return os.read(sys.stdin.fileno(), 1).decode(errors="replace") in _LEAVE


@contextmanager
def _keys() -> Iterator[None]:
    """Keys come one by one and are not shown; Ctrl-C stays what it is."""
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def draw(view: ClusterItems, url: str, size: ConsoleDimensions, *, trouble: str, idle_too: bool) -> RenderableType:
    """Everything that fits."""
    uses, models = list(device_uses(view)), model_rows(view, idle_too=idle_too)
    requests = request_rows(view, now_unix_ms=time.time() * 1000)
    for_devices, for_models, for_requests = _shares(size.height - _FIXED_LINES, len(uses), len(models), len(requests))
    head = Text.assemble(("puna top ", "bold"), f"{view.status.get('version', '')} at {url}  ", ("q leaves", "dim"))
    warning = trouble or (view.status.get("scheduler_error") or "")
    speeds = [float(sample.get("tokens_per_s") or 0) for sample in view.samples]
    return Group(
        head,
        Text(headline(view)),
        Text(spark_line(speeds, size.width), style=_MODELS),
        Text(warning, style="bold red", no_wrap=True, overflow="ellipsis"),
        Text.assemble(("■ models ", _MODELS), ("■ others ", _OTHERS), ("■ free", _FREE)),
        _devices(uses[:for_devices], size.width),
        Text(_left_out(len(uses) - for_devices, "devices"), style="dim"),
        _table(MODEL_HEADINGS, models[:for_models]),
        Text(_left_out(len(models) - for_models, "models"), style="dim"),
        _table(REQUEST_HEADINGS, requests[:for_requests]),
        Text(_left_out(len(requests) - for_requests, "requests"), style="dim"),
    )


def _shares(lines: int, devices: int, models: int, requests: int) -> tuple[int, int, int]:
    """Return the rows of each table: a third each; rows that one does not need pass to the next."""
    lines = max(3, lines)
    for_devices = min(devices, max(lines // 3, lines - models - requests))
    for_models = min(models, max((lines - for_devices) // 2, lines - for_devices - requests))
    return for_devices, for_models, max(0, min(requests, lines - for_devices - for_models))


def _devices(uses: Sequence[DeviceUse], width: int) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, show_header=False, expand=False)
    longest = max((len(use.node) + len(use.name) + 1 for use in uses), default=0)
    cells = max(_BAR_MIN, min(_BAR_MAX, width - longest - 45))
    for use in uses:
        models, others, free = bar(use, cells)
        drawn = Text.assemble(("█" * models, _MODELS), ("█" * others, _OTHERS), ("░" * free, _FREE))
        figures = f"{format_bytes(use.free_bytes)} free of {format_bytes(use.total_bytes)}"
        state = Text(use.state if use.state == "ok" else f"{use.state} {use.note}".strip())
        if use.state != "ok":
            state.stylize("red")
        table.add_row(Text(f"{use.node}/{use.name}"), drawn, Text(figures), state)
    return table


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in headings:
        table.add_column(heading, no_wrap=True, overflow="ellipsis")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _left_out(count: int, what: str) -> str:
    return f"and {count} more {what}" if count > 0 else ""

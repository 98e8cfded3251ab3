"""`puna top`: the cluster as it is now, redrawn as it changes."""

import os
import queue
import select
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console
from rich.live import Live

from cli.commands.top_screen import draw
from cli.core.cluster_view import ClusterItems
from cli.core.exit_codes import ExitCode
from cli.core.top_rows import DEVICE_HEADINGS, MODEL_HEADINGS, device_uses, headline, model_rows
from cli.errors import CommandFailed
from cli.output import print_json, print_table
from cli.server import Server

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

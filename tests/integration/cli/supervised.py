"""Tiny real services for tests of the supervisor, and waiting for what they do."""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

from cli.cluster.service import ServiceSpec

DEADLINE_S = 60.0
_LOOK_INTERVAL_S = 0.02

# Touches its file once it runs, and ends at SIGTERM.
OBEDIENT = """
import pathlib, signal, sys, threading
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
with pathlib.Path(sys.argv[1]).open("a") as file:
    file.write("started\\n")
stop.wait()
with pathlib.Path(sys.argv[1]).open("a") as file:
    file.write("stopped\\n")
"""
# Ignores SIGTERM, and has a child in its group that does so too.
STUBBORN = """
import pathlib, signal, subprocess, sys, threading
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"])
with pathlib.Path(sys.argv[1]).open("a") as file:
    file.write(f"{child.pid}\\n")
threading.Event().wait()
"""
BROKEN = "import sys; sys.exit('the port is taken')"


def spec(
    directory: Path,
    name: str,
    program: str = OBEDIENT,
    *,
    needs: frozenset[str] = frozenset(),
    ready_within_s: float = DEADLINE_S,
    stop_within_s: float = DEADLINE_S,
) -> ServiceSpec:
    """A service that is ready once its file has a word: an empty one may be killed before it has written."""
    mark = directory / f"{name}.mark"
    return ServiceSpec(
        name=name,
        command=(sys.executable, "-c", program, str(mark)),
        environment=lambda: os.environ,
        log=directory / f"{name}.log",
        ready=lambda: until(lambda: bool(marks(directory, name))),
        ready_within_s=ready_within_s,
        stop_within_s=stop_within_s,
        needs=needs,
    )


async def until(condition: Callable[[], bool]) -> None:
    """Return once the condition holds; fail when it does not in time."""
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()
    deadline_s = loop.time() + DEADLINE_S
    while not condition():
        assert loop.time() < deadline_s, "the condition never held"
        loop.call_later(_LOOK_INTERVAL_S, changed.set)
        await changed.wait()
        changed.clear()


def marks(directory: Path, name: str) -> list[str]:
    """Return the words that a service wrote."""
    path = directory / f"{name}.mark"
    return path.read_text().split() if path.exists() else []

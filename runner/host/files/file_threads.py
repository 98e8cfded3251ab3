"""File operations off the event loop: one that stands still is left behind, and the others go on.

A file of a network mount that is gone holds its reader inside the kernel, where nothing ends it. So each look has a
thread of its own, which says where it is; the process does not wait for it when it ends.
"""

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from common.errors import ModelUnavailable
from common.paths import open_regular, printable

STUCK_MAX = 8  # threads that stand still at once; beyond them nothing new is begun
TICK_S = 1.0
SILENCE_S = 15.0  # a disk that spins up, or a busy network mount, answers within it

Result = TypeVar("Result")


class FileStandsStill(ModelUnavailable):
    """A file operation does not end. `path` is what it is about."""

    def __init__(self, path: Path, text: str = "it does not answer") -> None:
        super().__init__(f"{printable(path)}: {text}")
        self.path = path


class FileStep:
    """The place that a thread has reached. Written by the thread, read by the event loop."""

    def __init__(self, path: Path) -> None:
        """`path` is what it begins with."""
        self.path = path
        self.count = 0
        self.is_left = False

    def at(self, path: Path) -> None:
        """Say that the operation before is over, and what comes next.

        Raises:
            FileStandsStill: the wait for this thread is over.
        """
        if self.is_left:
            raise FileStandsStill(path)
        self.path = path
        self.count += 1


class FileThreads:
    """Owned by the event loop."""

    def __init__(self, *, silence_s: float = SILENCE_S) -> None:
        """`silence_s`: a thread that says nothing for so long stands still."""
        self._silence_s = silence_s
        self._left: dict[threading.Thread, Path] = {}

    def stuck(self) -> frozenset[Path]:
        """Return the paths that some thread still stands at."""
        self._left = {thread: path for thread, path in self._left.items() if thread.is_alive()}
        return frozenset(self._left.values())

    async def run(self, path: Path, work: Callable[[FileStep], Result]) -> Result:
        """Return what `work` returns; it runs in a thread and calls `at` of its argument before each operation.

        Raises:
            FileStandsStill: it does not end, another one at the same path has not ended, or too many others have not.
        """
        stuck = self.stuck()
        if path in stuck:
            raise FileStandsStill(path)
        if len(stuck) >= STUCK_MAX:
            raise FileStandsStill(path, f"not read while {len(stuck)} other files do not answer")
        step, result = FileStep(path), Future[Result]()
        thread = threading.Thread(target=_run, args=(work, step, result), name=f"file {printable(path)}", daemon=True)
        thread.start()
        done = asyncio.wrap_future(result)
        try:
            await self._watch(step, done)
            return done.result()
        finally:
            if not done.done():
                step.is_left = True
                self._left[thread] = step.path

    async def read_first(self, path: Path) -> None:
        """Read one byte, so that no process has to wait for a file that does not answer.

        Raises:
            FileStandsStill: as `run`.
            OSError: it cannot be read, or is no regular file.
        """
        await self.run(path, lambda _step: _read_first(path))

    async def _watch(self, step: FileStep, done: "asyncio.Future[Result]") -> None:
        """Wait by ticks: a process that was stopped for a while finds that one of them is over, not all."""
        tick_s = min(TICK_S, self._silence_s)
        quiet_s, count = 0.0, step.count
        while not (await asyncio.wait({done}, timeout=tick_s))[0]:
            quiet_s, count = (quiet_s + tick_s, count) if step.count == count else (0.0, step.count)
            if quiet_s >= self._silence_s:
                raise FileStandsStill(step.path)


def _read_first(path: Path) -> None:
    descriptor = open_regular(path)
    try:
        os.read(descriptor, 1)
    finally:
        os.close(descriptor)


def _run(work: Callable[[FileStep], Result], step: FileStep, done: "Future[Result]") -> None:
    done.set_running_or_notify_cancel()  # from here on it is settled by this thread alone
    try:
        done.set_result(work(step))
    except Exception as error:  # noqa: BLE001  # raised again where it is waited for
        done.set_exception(error)

"""The output of a setup: a line for the stage that runs, everything in a log, the errors of what failed."""

import sys
import time
from collections import deque
from pathlib import Path
from typing import TextIO

from tools.setup.failures import explain
from tools.setup.progress import PlainView, Progress, Reader, TerminalView, View, duration

_OUTPUT_LINES_MAX = 5_000  # of one command, for its errors
_REDRAW_S = 0.2


class Console:
    """Writes for a terminal or for a log, by what standard output is."""

    def __init__(self, log: Path, *, width: int, out: TextIO = sys.stdout) -> None:
        log.parent.mkdir(exist_ok=True)
        self._out = out
        self._log_path = log
        self._log = log.open("w", encoding="utf-8", buffering=1)
        self._view: View = TerminalView(width) if out.isatty() else PlainView()
        self._began_s = self._stage_began_s = time.monotonic()
        self._title = ""
        self._progress = Progress()
        self._reader: Reader | None = None
        self._drawn_s = 0.0
        self._output: deque[str] = deque(maxlen=_OUTPUT_LINES_MAX)

    def say(self, text: str) -> None:
        """Write a line of our own."""
        print(text, file=self._out, flush=True)
        self._log.write(f"{text}\n")

    def begin(self, title: str, reader: Reader | None = None, *, total: int = 0) -> None:
        """Begin a stage; `reader` turns its output into progress, of `total` steps if that is known."""
        self._title, self._progress, self._reader = title, Progress(total=total), reader
        self._stage_began_s = time.monotonic()
        self._output.clear()
        self._draw()

    def hear(self, line: str | None) -> None:
        """Take a line of the stage's output, or None if there was none for a while."""
        now_s = time.monotonic()
        if line is not None:
            self._log.write(f"{now_s - self._began_s:8.1f} {line}\n")
            self._output.append(line)
            if self._reader is not None:
                progress = self._reader(self._progress, line, now_s)
                if progress.phase != self._progress.phase:
                    self._draw()  # the end of a phase, however short it was
                self._progress = progress
        if line is None or now_s - self._drawn_s >= _REDRAW_S:
            self._draw()

    def end(self) -> None:
        """End the stage; it has succeeded."""
        passed = duration(time.monotonic() - self._stage_began_s)
        total = f", {self._progress.total} {self._progress.unit}" if self._progress.total else ""
        self._write(self._view.end(self._title, f"{passed}{total}"))

    def fail(self, status: int) -> None:
        """End the stage with the errors of its last command, and what to do about them."""
        passed = duration(time.monotonic() - self._stage_began_s)
        self._write(self._view.end(self._title, f"failed after {passed} (exit status {status})"))
        failure = explain(list(self._output))
        text = "".join(f"    {line.strip()}\n" for line in failure.lines)
        advice = f"To do: {failure.advice}\n" if failure.advice else ""
        self._write(f"{text}All of its output: {self._log_path}\n{advice}")

    def total_s(self) -> float:
        """Return the time since the beginning."""
        return time.monotonic() - self._began_s

    def _draw(self) -> None:
        now_s = self._drawn_s = time.monotonic()
        passed_s = now_s - self._stage_began_s
        self._write(self._view.update(self._title, self._progress, passed_s=passed_s, now_s=now_s))

    def _write(self, text: str) -> None:
        if text:
            self._out.write(text)
            self._out.flush()

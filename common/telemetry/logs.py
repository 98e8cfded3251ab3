"""One JSON object per log event on standard error, with the request's id where there is one.

A disk that is full and a pipe that is not read cost log lines, and nothing else: lines are written by a thread.
"""

import atexit
import logging
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Callable
from itertools import accumulate
from typing import TextIO, cast

import structlog
from structlog.typing import FilteringBoundLogger

from common.telemetry.metrics import LOG_LINES_DROPPED

# Some ten thousand lines: minutes of a busy gateway.
QUEUE_BYTES_MAX = 4 * 1024 * 1024
DRAIN_S_MAX = 1.0
# Lines of this time are written together: each wake-up of the thread takes the interpreter from the other threads.
PAUSE_S = 0.005
# Without the values of local variables: they hold prompts, and keys.
_TRACEBACKS = structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False))


class LineWriter:
    """Writes to a descriptor in a thread. `write` never waits and never fails; what cannot be written is dropped."""

    def __init__(self, descriptor: int, *, resumed: Callable[[int], None] | None = None) -> None:
        """Start the thread. It calls `resumed` with the number of dropped lines once lines are written again."""
        self._descriptor = descriptor
        self._resumed = resumed
        self._lines: deque[bytes] = deque()
        self._bytes = 0  # also of the lines that are being written
        self._dropped = 0
        self._is_torn = False  # a part of the last line was written
        self._is_idle = False  # the thread waits for a line
        self._is_draining = False  # True for good: the process is about to end
        self._changed = threading.Condition()
        threading.Thread(target=self._write_all, name="log", daemon=True).start()

    def write(self, text: str) -> None:
        """Queue whole lines, or drop them if the queue is full."""
        data = text.encode(errors="backslashreplace")
        with self._changed:
            if self._bytes + len(data) > QUEUE_BYTES_MAX:
                self._drop(1)
                return
            self._lines.append(data)
            self._bytes += len(data)
            if self._is_idle:
                self._changed.notify_all()

    def flush(self) -> None:
        """Do nothing: loggers call it after every line."""

    def drain(self) -> None:
        """Wait until everything is written, for a second at most: a process ends although its log is not read.

        Later lines are written without a pause, since the process may end at any time.
        """
        with self._changed:
            self._is_draining = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._bytes == 0, DRAIN_S_MAX)

    def _write_all(self) -> None:
        while True:
            lines = self._next_lines()
            lost = self._write(lines)
            resumed_after = 0
            with self._changed:
                self._bytes -= sum(map(len, lines))
                if lost:
                    self._drop(lost)
                elif self._dropped:
                    resumed_after, self._dropped = self._dropped, 0
                self._changed.notify_all()
            if resumed_after and self._resumed is not None:
                self._resumed(resumed_after)

    def _next_lines(self) -> list[bytes]:
        """Wait for a line; return it with as many further ones as a shared pipe takes in one piece."""
        with self._changed:
            if not self._lines:
                self._changed.wait_for(lambda: self._is_draining, PAUSE_S)
                self._is_idle = True
                self._changed.wait_for(lambda: self._lines)
                self._is_idle = False
            lines = [self._lines.popleft()]
            size = len(lines[0])
            while self._lines and (size := size + len(self._lines[0])) <= select.PIPE_BUF:
                lines.append(self._lines.popleft())
            return lines

    def _write(self, lines: list[bytes]) -> int:
        """Write lines; return the number of lost ones: after an error the rest of them is dropped."""
        if self._is_torn:
            lines = [b"\n" + lines[0], *lines[1:]]
        left = whole = b"".join(lines)
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:  # another process made the pipe that it shares with this one non-blocking
                select.select([], [self._descriptor], [])
            except OSError:
                written, ends = len(whole) - len(left), list(accumulate(map(len, lines)))
                if written:
                    self._is_torn = written not in ends
                return sum(end > written for end in ends)
        self._is_torn = False
        return 0

    def _drop(self, lines: int) -> None:
        self._dropped += lines
        LOG_LINES_DROPPED.inc(lines)


_writers: list[LineWriter] = []  # of this process: one, once logs are set up


def configure_logs(*, service: str, debug: bool = False) -> None:
    """Set up structlog and the standard library's logging for this process: call it once."""
    writer = LineWriter(
        sys.stderr.fileno(), resumed=lambda lines: get_logger().warning("log.lines_dropped", lines=lines)
    )
    _writers.append(writer)
    stream = cast(TextIO, writer)
    level = logging.DEBUG if debug else logging.INFO
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _TRACEBACKS,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(service=service)
    # Libraries that log through the standard library (uvicorn, redis) speak only when something is wrong.
    logging.basicConfig(stream=stream, level=logging.WARNING, format='{"event": "%(name)s", "text": "%(message)s"}')


@atexit.register
def drain_logs() -> None:
    """Wait until everything that was logged is written, for a second at most. Call it before `os._exit`."""
    for writer in _writers:
        writer.drain()


def get_logger() -> FilteringBoundLogger:
    """Return the logger of this process."""
    logger: FilteringBoundLogger = structlog.get_logger()
    return logger

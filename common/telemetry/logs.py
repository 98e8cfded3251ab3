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
from typing import TextIO, cast

import structlog
from structlog.typing import FilteringBoundLogger

from common.telemetry.metrics import LOG_LINES_DROPPED

# Some ten thousand lines: minutes of a busy gateway.
QUEUE_BYTES_MAX = 4 * 1024 * 1024
DRAIN_S_MAX = 1.0
# Without the values of local variables: they hold prompts, and keys.
_TRACEBACKS = structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False))


class LineWriter:
    """Writes to a descriptor in a thread. `write` never waits and never fails; what cannot be written is dropped."""

    def __init__(self, descriptor: int, *, resumed: Callable[[int], None] | None = None) -> None:
        """Start the thread. It calls `resumed` with the number of dropped lines once lines are written again."""
        self._descriptor = descriptor
        self._resumed = resumed
        self._lines: deque[bytes] = deque()
        self._bytes = 0  # also of the line that is being written
        self._dropped = 0
        self._is_torn = False  # a part of the last line was written
        self._changed = threading.Condition()
        threading.Thread(target=self._write_all, name="log", daemon=True).start()

    def write(self, text: str) -> None:
        """Queue whole lines, or drop them if the queue is full."""
        data = text.encode(errors="backslashreplace")
        with self._changed:
            if self._bytes + len(data) > QUEUE_BYTES_MAX:
                self._drop()
                return
            self._lines.append(data)
            self._bytes += len(data)
            self._changed.notify_all()

    def flush(self) -> None:
        """Do nothing: loggers call it after every line."""

    def drain(self) -> None:
        """Wait until everything is written, for a second at most: a process ends although its log is not read."""
        with self._changed:
            self._changed.wait_for(lambda: self._bytes == 0, DRAIN_S_MAX)

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines)
                line = self._lines.popleft()
            is_written = self._write(line)
            resumed_after = 0
            with self._changed:
                self._bytes -= len(line)
                if not is_written:
                    self._drop()
                elif self._dropped:
                    resumed_after, self._dropped = self._dropped, 0
                self._changed.notify_all()
            if resumed_after and self._resumed is not None:
                self._resumed(resumed_after)

    def _write(self, line: bytes) -> bool:
        left = b"\n" + line if self._is_torn else line
        whole = len(left)
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:  # another process made the pipe that it shares with this one non-blocking
                select.select([], [self._descriptor], [])
            except OSError:
                self._is_torn = self._is_torn or len(left) < whole
                return False
        self._is_torn = False
        return True

    def _drop(self) -> None:
        self._dropped += 1
        LOG_LINES_DROPPED.inc()


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

"""The thread of an engine, and how it and every compute thread that it makes look to the system."""

import contextlib
import contextvars
import ctypes
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the contract needs numpy, and a host, which knows the thread by its name, does not
    from runner.engine.contract.engine import EngineListener

ENGINE_THREAD = "engine"
_SET_NAME = 15  # of prctl


class EngineThread:
    """The one thread of an engine; it does not keep the process alive."""

    def __init__(self) -> None:
        """Not started."""
        self._thread: threading.Thread | None = None

    def start(self, run: "Callable[[EngineListener], None]", listener: "EngineListener") -> None:
        """Run the engine in it, which notifies the listener."""
        self._thread = threading.Thread(
            # Context variables do not cross threads by themselves, and the log's fields are in them.
            target=contextvars.copy_context().run,
            args=(run, listener),
            name=ENGINE_THREAD,
            daemon=True,
        )
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait for its end; True if it has ended, or never began."""
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()


def mark_engine_thread() -> None:
    """Name this thread and call it a batch job; threads that it makes inherit both.

    `top -H` shows them by a name of their own. As batch jobs they do not push the event loop off a core when
    they wake, and their slices are long: with as many compute threads as cores the loop otherwise waits a scheduler's
    slice for every message (57 M parameters on two cores: first token 13.9 → 11.7 ms, 3 to 5 % more tokens/s).
    """
    with contextlib.suppress(AttributeError):  # not on Linux
        ctypes.CDLL(None).prctl(_SET_NAME, ENGINE_THREAD.encode(), 0, 0, 0)  # in /proc the sandbox forbids it
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):  # a sandbox may forbid it
            os.sched_setscheduler(threading.get_native_id(), os.SCHED_BATCH, os.sched_param(0))

"""Threads that compute: how many, and how long OpenMP's spin at barriers, while they run.

libgomp reads its spin count once, when it is loaded. But it has two: if there are more OpenMP threads than available
CPUs, 100 spins are used instead of 300,000 (Source: the libgomp manual on GOMP_SPINCOUNT). A second team of threads,
which sleeps, is enough to be more: as long as it exists all spinning is short.
"""

import ctypes
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from common.clock import NS_PER_S
from common.telemetry.logs import get_logger
from runner.core.threads.spinning import ProcessorTimes, SpinRule

log = get_logger()

LOOK_INTERVAL_NS = 500_000_000
# After a look that came late: it saw a time in which little was computed here.
SOON_NS = 100_000_000
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_IDLE, _IO_WAIT, _STEAL = 3, 4, 7  # columns of /proc/stat


class Spinning:
    """Follows how busy the cores are. Only the engine thread may use it."""

    def __init__(self, *, threads: int) -> None:
        """`threads`: how many compute; one alone meets no other."""
        self._cpus = os.sched_getaffinity(0)
        self._rule = SpinRule(cores=len(self._cpus))
        self._next_look_ns = 0
        self._team: SleepingTeam | None = None
        library = _libgomp()
        chosen = "OMP_WAIT_POLICY" in os.environ or "GOMP_SPINCOUNT" in os.environ
        self._library = library if threads > 1 and not chosen else None
        self._threads = threads
        if self._library is not None:
            self._team = SleepingTeam(self._library, self._team_threads())
            self.decide()

    def use(self, threads: int) -> None:
        """So many compute from now on."""
        before, self._threads = self._threads, threads
        if self._library is not None and self._team is not None and threads < before:
            self.close()
            self._team = SleepingTeam(self._library, self._team_threads())

    def decide(self) -> None:
        """Look now; what passed since the last look, which a new object takes when it is made, decides."""
        self._next_look_ns = 0
        self.look(time.monotonic_ns())

    def look(self, now_ns: int) -> None:
        """Look at the system twice a second. It is called after every decode call."""
        if self._library is None or self._threads < 2 or now_ns < self._next_look_ns:
            return
        is_late = now_ns > self._next_look_ns + LOOK_INTERVAL_NS
        self._next_look_ns = now_ns + (SOON_NS if is_late else LOOK_INTERVAL_NS)
        try:
            short = self._rule.look(read_counters(self._cpus))
        except (OSError, ValueError, IndexError):  # no such files here: stay as it is
            self._library = None
            return
        if short == (self._team is not None):
            return
        log.info("engine.spinning", short=short)
        if short:
            self._team = SleepingTeam(self._library, self._team_threads())
        else:
            self.close()

    def _team_threads(self) -> int:
        """Enough for more threads than CPUs together with those that compute."""
        return max(2, len(self._cpus) - self._threads + 2)

    def close(self) -> None:
        """Let the sleeping team go."""
        if self._team is not None:
            self._team.end()
            self._team = None


class ComputeThreads(Spinning):
    """Number of threads that compute the calls of a context, and how they spin."""

    def __init__(self, set_threads: Callable[[int, int], None], *, threads: int, keeps_lone: bool) -> None:
        """`set_threads`: for calls of one token and of several. `keeps_lone`: those of one token keep all `threads`."""
        super().__init__(threads=threads)
        self._contexts = [set_threads]
        self._threads_max = threads
        self._keeps_lone = keeps_lone

    def also(self, set_threads: Callable[[int, int], None]) -> None:
        """Set the threads of one more context from now on."""
        self._contexts.append(set_threads)

    def use(self, threads: int) -> None:
        """So many compute from the next call on."""
        several = max(1, min(threads, self._threads_max))
        lone = self._threads_max if self._keeps_lone else several
        for set_threads in self._contexts:
            set_threads(lone, several)
        super().use(lone)


class SleepingTeam:
    """OpenMP threads that do nothing but exist."""

    def __init__(self, library: ctypes.CDLL, threads: int) -> None:
        """They exist when this returns."""
        self._ended = threading.Event()
        exists = threading.Event()

        def hold() -> None:
            # A parallel region in which every thread frees nothing; its threads stay for this thread's next region.
            free = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)
            library.GOMP_parallel(free, None, ctypes.c_uint(threads), ctypes.c_uint(0))
            exists.set()
            self._ended.wait()

        self._thread = threading.Thread(target=hold, name="spinning", daemon=True)
        self._thread.start()
        exists.wait()

    def end(self) -> None:
        """With the thread that made them they are gone."""
        self._ended.set()
        self._thread.join()


def read_counters(cpus: set[int]) -> ProcessorTimes:
    """From /proc.

    Raises:
        OSError: the system has no such files.
    """
    names = {f"cpu{cpu}" for cpu in cpus}
    busy = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *columns = line.split()
        if name in names:
            numbers = [int(column) for column in columns[: _STEAL + 1]]
            busy += sum(numbers) - numbers[_IDLE] - numbers[_IO_WAIT]
    waiting_ns = 0
    for task in Path("/proc/self/task").iterdir():
        try:
            waiting_ns += int((task / "schedstat").read_text().split()[1])
        except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            continue
    return ProcessorTimes(
        now_s=time.monotonic(), busy_s=busy / _TICKS_PER_S, own_s=time.process_time(), waiting_s=waiting_ns / NS_PER_S
    )


def _libgomp() -> ctypes.CDLL | None:
    """Return the library that is loaded already; None where ggml has other threads."""
    try:
        return ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return None

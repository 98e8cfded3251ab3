"""The loop of an engine thread: commands of other threads, then one step, for as long as the process lives."""

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial
from math import inf

from runner.core.threads.step_times import BEAT_S, WAIT_LIMIT_S, EngineStep, StepTimes
from runner.engine.threads.spinning import ComputeThreads

IDLE_TEST_S = 30.0  # between tests of idle devices


class EngineLoop(ABC):
    """Public methods but `run` and `turn` may be called from any thread; everything else is the engine thread's."""

    def __init__(self, threads: ComputeThreads, times: StepTimes) -> None:
        """`threads` compute the calls, whose durations `times` has."""
        self._threads = threads
        self._times = times
        self.step = EngineStep(0, WAIT_LIMIT_S)  # read by other threads
        self.idle_test_s = inf  # between tests of idle devices; infinite: there is none to test
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Event()
        self._stopping = False

    def post(self, command: Callable[[], None]) -> None:
        """Run a command in the engine thread, between two steps."""
        self._inbox.append(command)
        self._wake.set()

    def cancel(self, request_id: int) -> None:
        """Drop a request before the next decode call. Unknown ids are ignored."""
        self.post(partial(self._cancel, request_id))

    def use_threads(self, count: int) -> None:
        """Let so many threads compute from the next decode call on."""
        self.post(partial(self._threads.use, count))

    def stop(self) -> None:
        """Drop every request and let `run` return."""
        self.post(self._note_stop)

    def run(self) -> None:
        """Serve until `stop`.

        Raises:
            EngineFailure: the engine broke.
        """
        idle_since_s = time.monotonic()
        while not self._stopping:
            self._wake.clear()
            if self.turn():
                idle_since_s = time.monotonic()
                continue
            if self._stopping or self._wake.wait(min(BEAT_S, self.idle_test_s)):
                continue
            if time.monotonic() >= idle_since_s + self.idle_test_s:
                self.step = self.step.begun(self._times.limit_s_min)
                self._test_idle()
                self.step = self.step.ended()
                idle_since_s = time.monotonic()
        self._drop_all()

    @abstractmethod
    def _test_idle(self) -> None:
        """Compute something of no consequence, so that a device that hangs is found before a request meets it."""

    def turn(self) -> bool:
        """Obey what was posted, then run one step or tidy up; False if there is nothing to do."""
        self.step = self.step.begun(self._times.limit_s_min)
        while self._inbox:
            self._inbox.popleft()()
        worked = not self._stopping and self._work()
        self.step = self.step.ended()
        return worked

    def _expect_call(self, inputs: int) -> float:
        """Allow the current step the time of a call of so many inputs; return how long it is expected to take."""
        self.step = EngineStep(self.step.number, self._times.limit_s(inputs))
        return self._times.expected_s(inputs)

    @abstractmethod
    def _work(self) -> bool:
        """Run one step; False if there is nothing to do."""

    @abstractmethod
    def _cancel(self, request_id: int) -> None:
        """Drop a request, if it is there."""

    @abstractmethod
    def _drop_all(self) -> None:
        """Drop every request and report their ends."""

    def _note_stop(self) -> None:
        self._stopping = True

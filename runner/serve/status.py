"""Status of a runner, and its watchers."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator

from common.clock import MS_PER_S, NS_PER_MS, Clock
from common.errors import ModelLoading, PunaError, ShuttingDown
from common.spec import codecs
from common.spec.pace import RunnerPace
from protos import cluster_pb2
from runner import metrics
from runner.engine.contract.engine import LoadProgress, SequenceTimes
from runner.serve.compute_threads import ThreadSetting
from runner.serve.streams import RequestTable

# A ready runner's status is pushed at most this often; a load's every hundredth is.
PUSH_INTERVAL_S = 0.05
# And at least this often, so that silence shows a fault.
REPORT_INTERVAL_S = 1.0
_UNREAD_MAX = 256


class StatusBoard:
    """The runner's state. Owned by the event loop."""

    def __init__(self, clock: Clock, requests: RequestTable, threads: ThreadSetting) -> None:
        self._clock = clock
        self._requests = requests
        self._requests.on_change = self.changed
        self.threads = threads
        self._state = cluster_pb2.RUNNER_STATE_LOADING
        self._draining = False
        self._loaded = LoadProgress(0.0, 0, 0)
        self._busy_until_s = clock.now_s()
        self._watchers: dict[_Watcher, None] = {}  # in the order of their coming
        self.error_told = asyncio.Event()
        self.error: cluster_pb2.RunnerError | None = None
        self._keep_alive_ms: int | None = None
        self._keep_alive_wishes = 0
        self.memory: cluster_pb2.MemoryReport | None = None
        self.decode_window: cluster_pb2.DecodeWindow | None = None
        self.speculation: cluster_pb2.Speculation | None = None
        self.hung_s = 0.0  # how long the engine thread has been blocked
        self._evaluated_tokens = 0
        self._evaluated_ns = 0
        self._answers = self._answer_tokens = 0
        self._prompt_bytes = self._prompt_tokens = 0
        self.batch_tokens = 0  # most inputs of one decode call

    def progressed(self, progress: LoadProgress) -> None:
        """Part of the model is loaded."""
        before = self._loaded
        self._loaded = LoadProgress(
            fraction=max(before.fraction, progress.fraction),
            bytes_done=max(before.bytes_done, progress.bytes_done),
            bytes_total=max(before.bytes_total, progress.bytes_total),
        )
        metrics.LOAD_FRACTION.set(self._loaded.fraction)
        self.changed()

    def ready(self) -> None:
        """Report that the model is loaded."""
        self._state = cluster_pb2.RUNNER_STATE_READY
        self._busy_until_s = self._clock.now_s()
        self.changed()

    def failed(self, error: PunaError, attempted: cluster_pb2.MemoryReport | None = None) -> None:
        """Report a failed load; this is the last status."""
        self._state = cluster_pb2.RUNNER_STATE_ERROR
        self.error = cluster_pb2.RunnerError(reason=error.reason, message=error.message, attempted=attempted)
        self.changed()

    def drain(self) -> None:
        """Take nothing new from now on."""
        self._draining = True
        self.changed()

    def check_accepting(self) -> None:
        """Refuse while loading or draining.

        Raises:
            ModelLoading: not loaded yet, or never will be.
            ShuttingDown: draining.
        """
        if self._draining:
            raise ShuttingDown("this runner is shutting down")
        if self._state != cluster_pb2.RUNNER_STATE_READY:
            raise ModelLoading("the model is still loading", retry_after_s=1.0)

    def changed(self) -> None:
        """Wake all watchers."""
        if self._requests.slots_busy:
            self._busy_until_s = self._clock.now_s()
        status = self.snapshot()
        for watcher in self._watchers:
            watcher.add(status)

    def evaluated(self, times: SequenceTimes, *, answer_tokens: int) -> None:
        """Learn from a sequence that has ended."""
        self._evaluated_tokens += times.evaluated_tokens
        self._evaluated_ns += times.prompt_ns
        self._answers += 1
        self._answer_tokens += answer_tokens
        self.changed()

    def named(self, *, size_bytes: int, tokens: int) -> None:
        """Learn from a prompt of so many bytes and tokens."""
        self._prompt_bytes += size_bytes
        self._prompt_tokens += tokens

    def used(self) -> None:
        """Note a request, even if it never gets a slot."""
        self._busy_until_s = self._clock.now_s()

    def note_keep_alive(self, keep_alive_ms: int) -> None:
        """Record the keep_alive of a request. The same value again counts, too: it is the newest."""
        self._keep_alive_ms = keep_alive_ms
        self._keep_alive_wishes += 1

    def snapshot(self) -> cluster_pb2.RunnerStatus:
        """Return the status now."""
        requests = self._requests
        idle_ms = 0
        if self._state == cluster_pb2.RUNNER_STATE_READY and requests.inside == 0:
            idle_ms = round((self._clock.now_s() - self._busy_until_s) * MS_PER_S)
        return cluster_pb2.RunnerStatus(
            state=self._shown_state(),
            load_fraction=self._loaded.fraction,
            load_bytes_done=self._loaded.bytes_done,
            load_bytes_total=self._loaded.bytes_total,
            slots_total=requests.slots,
            slots_busy=requests.slots_busy,
            queued=requests.waiting,
            open_slots=[min(slots, requests.places) for slots in requests.open_slots],
            idle_ms=idle_ms,
            keep_alive_ms=self._keep_alive_ms,
            keep_alive_wishes=self._keep_alive_wishes,
            requests_total=requests.accepted,
            memory=self.memory,
            error=self.error,
            held_prompt_ms=self._held_prompt_ms(),
            pace=codecs.PACE.to_proto(self._pace()),
            decode_window=self.decode_window,
            threads=self.threads.now,
            threads_max=self.threads.most,
            hung_ms=round(self.hung_s * MS_PER_S),
            multiplexes=requests.slots > 0,
            speculation=self.speculation,
        )

    async def watch(self) -> AsyncIterator[cluster_pb2.RunnerStatus]:
        """Yield the status now and after every change; end after an error."""
        watcher = _Watcher()
        watcher.add(self.snapshot())
        self._watchers[watcher] = None
        try:
            while True:
                if not await watcher.wait(REPORT_INTERVAL_S):
                    watcher.add(self.snapshot())
                for status in watcher.take():
                    try:
                        yield status
                    finally:  # a reader that has what it wanted may leave instead of asking for more
                        if status.state == cluster_pb2.RUNNER_STATE_ERROR:
                            self.error_told.set()
                    if status.state == cluster_pb2.RUNNER_STATE_ERROR:
                        return
                if self._state == cluster_pb2.RUNNER_STATE_READY:
                    await asyncio.sleep(PUSH_INTERVAL_S)
        finally:
            self._watchers.pop(watcher, None)

    def _held_prompt_ms(self) -> int:
        """Return the time to compute again all that the slots hold, at the speed seen so far."""
        if not self._evaluated_tokens:
            return 0
        return round(self._requests.held_inputs * self._evaluated_ns / self._evaluated_tokens / NS_PER_MS)

    def _pace(self) -> RunnerPace:
        cost = self._requests.cost
        return RunnerPace(
            batch_tokens=self.batch_tokens,
            call_s=cost.fixed_s,
            token_s=cost.token_s,
            bytes_per_token=self._prompt_bytes / max(1, self._prompt_tokens),
            answer_tokens=self._answer_tokens / max(1, self._answers),
        )

    def _shown_state(self) -> cluster_pb2.RunnerState.ValueType:
        if self._state == cluster_pb2.RUNNER_STATE_READY:
            if self._draining:
                return cluster_pb2.RUNNER_STATE_DRAINING
            if self._requests.slots_busy >= self._requests.slots > 0:
                return cluster_pb2.RUNNER_STATE_NO_SLOTS
        return self._state


class _Watcher:
    """Unread messages of one reader: every step of a load, else only the newest status."""

    def __init__(self) -> None:
        self._unread: deque[cluster_pb2.RunnerStatus] = deque(maxlen=_UNREAD_MAX)
        self._event = asyncio.Event()

    def add(self, status: cluster_pb2.RunnerStatus) -> None:
        if self._unread and self._unread[-1].state != cluster_pb2.RUNNER_STATE_LOADING:
            self._unread.pop()
        self._unread.append(status)
        self._event.set()

    async def wait(self, timeout_s: float) -> bool:
        """Return True if there is news within the time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        return self._event.is_set()

    def take(self) -> list[cluster_pb2.RunnerStatus]:
        self._event.clear()
        unread = list(self._unread)
        self._unread.clear()
        return unread

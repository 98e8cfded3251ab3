"""Number of threads that compute the calls of a context, and their waits for each other."""

from collections.abc import Callable

from runner.engine.threads.spinning import Spinning


class ComputeThreads:
    """Only the engine thread may use it."""

    def __init__(
        self, set_threads: Callable[[int, int], None], spinning: Spinning, *, threads: int, keeps_lone: bool
    ) -> None:
        """`set_threads`: for calls of one token and of several. `keeps_lone`: those of one token keep all `threads`."""
        self._set_threads = set_threads
        self._spinning = spinning
        self._threads_max = threads
        self._keeps_lone = keeps_lone

    def use(self, count: int) -> None:
        """So many compute from the next call on."""
        threads = max(1, min(count, self._threads_max))
        lone = self._threads_max if self._keeps_lone else threads
        self._set_threads(lone, threads)
        self._spinning.use(lone)

    def look(self, now_ns: int) -> None:
        """See `Spinning.look`."""
        self._spinning.look(now_ns)

    def close(self) -> None:
        """See `Spinning.close`."""
        self._spinning.close()

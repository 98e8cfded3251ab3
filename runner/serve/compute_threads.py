"""Number of CPU threads that this runner computes with, and the callers that may change it."""

from common.errors import InvalidRequest
from runner import metrics
from runner.engine.contract.engine import Engine, LoadedModel


class ThreadSetting:
    """Owned by the event loop."""

    def __init__(self, engine: Engine, *, asked: int) -> None:
        """`asked`: a user's number stays; 0: automatic."""
        self._engine = engine
        self._stays = asked > 0
        self.now = 0
        self.most = 0  # 0: the number stays as it is

    def loaded(self, model: LoadedModel) -> None:
        """Note a loaded model, which computes with all of its threads."""
        self.now, self.most = model.layout.threads, model.threads_max
        metrics.THREADS.set(self.now)

    def use(self, count: int) -> int:
        """Let so many compute from the next call on; return how many it are.

        Raises:
            InvalidRequest: none cannot compute.
        """
        if count < 1:
            raise InvalidRequest("at least one thread computes", param="threads")
        wanted = self.now if self._stays or not self.most else min(count, self.most)
        if wanted != self.now:
            self.now = wanted
            self._engine.use_threads(wanted)
            metrics.THREADS.set(wanted)
        return self.now

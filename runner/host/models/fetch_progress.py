"""How far a load is whose files must come, or be read, before the engine sees them: one figure from the first byte."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from protos import cluster_pb2
from runner.host.runners.runner_spec import RunnerSpec


@dataclass(frozen=True, slots=True)
class Preparation:
    """What is done first. `share` of the whole way is this."""

    note: str
    share: float


# A network brings fewer bytes a second than the disk that they are read from afterwards.
FETCHING = Preparation("fetching", 0.9)
# Everything is read twice; the second time much of it is in memory already.
VERIFYING = Preparation("verifying", 0.5)

# Have the files ready, telling the bytes that are done and those of all of it; the runner's spec with its files.
PrepareFiles = Callable[[Callable[[int, int], None]], Awaitable[RunnerSpec]]


class FetchProgress:
    """Changes what others see of a runner's status, not what the host itself goes by: bytes on devices."""

    def __init__(self) -> None:
        self._what: Preparation | None = None
        self._is_over = False
        self._done_bytes = 0
        self._total_bytes = 0

    def begin(self, what: Preparation) -> None:
        """It begins."""
        self._what = what

    def end(self) -> None:
        """The files are here; from now on they are loaded."""
        self._is_over = True

    def tell(self, done_bytes: int, total_bytes: int) -> None:
        """So much is done. Another source may have to begin anew: the figure stays where it was."""
        self._done_bytes, self._total_bytes = max(done_bytes, self._done_bytes), total_bytes

    def show(self, status: cluster_pb2.RunnerStatus) -> None:
        """The status as others see it."""
        what = self._what
        if what is None:
            return
        if self._is_over:
            status.load_fraction = what.share + (1 - what.share) * status.load_fraction
        elif status.state == cluster_pb2.RUNNER_STATE_LAUNCHED:
            status.state = cluster_pb2.RUNNER_STATE_LOADING
            status.load_note = what.note
            status.load_bytes_total = self._total_bytes
            status.load_fraction = what.share * self._done_bytes / max(1, self._total_bytes)

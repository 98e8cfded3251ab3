"""How far a load is whose files come from another node first: one figure for people, from the first byte to ready."""

from collections.abc import Awaitable, Callable

from protos import cluster_pb2
from runner.host.runner_spec import RunnerSpec

# Fetch the files, telling the bytes that are here and those of all of it; the runner's spec with its files.
FetchFiles = Callable[[Callable[[int, int], None]], Awaitable[RunnerSpec]]
FETCHING = "fetching"
# Of the whole way: a network brings fewer bytes a second than the disk that they are read from afterwards.
FETCH_SHARE = 0.9


class FetchProgress:
    """Changes what others see of a runner's status, not what the host itself goes by: bytes on devices."""

    def __init__(self) -> None:
        self._is_fetching = False
        self._has_fetched = False
        self._done_bytes = 0
        self._total_bytes = 0

    def fetching(self) -> None:
        """It begins."""
        self._is_fetching = True

    def fetched(self) -> None:
        """The files are here; from now on they are loaded."""
        self._is_fetching, self._has_fetched = False, True

    def tell(self, done_bytes: int, total_bytes: int) -> None:
        """So much is here. Another source may have to begin anew: the figure stays where it was."""
        self._done_bytes, self._total_bytes = max(done_bytes, self._done_bytes), total_bytes

    def show(self, status: cluster_pb2.RunnerStatus) -> None:
        """The status as others see it."""
        if self._is_fetching and status.state == cluster_pb2.RUNNER_STATE_LAUNCHED:
            status.state = cluster_pb2.RUNNER_STATE_LOADING
            status.load_note = FETCHING
            status.load_bytes_total = self._total_bytes
            status.load_fraction = FETCH_SHARE * self._done_bytes / max(1, self._total_bytes)
        elif self._has_fetched:
            status.load_fraction = FETCH_SHARE + (1 - FETCH_SHARE) * status.load_fraction

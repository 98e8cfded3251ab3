"""Progress of a load: one figure from the first byte of its files, and the last error line of its log."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from protos import cluster_pb2
from runner.core.host.exits import last_error_line
from runner.host.devices.decode_speeds import LOADING
from runner.host.models.model_files import OnProgress
from runner.host.processes.process import read_log_tail
from runner.host.runners.runner_spec import RunnerSpec


@dataclass(frozen=True, slots=True)
class Preparation:
    """Phase before the engine reads the files. `share`: its part of the whole progress."""

    note: str
    share: float


# A network brings fewer bytes a second than the disk that they are read from afterwards.
FETCHING = Preparation("fetching", 0.9)
# Everything is read twice; the second time much of it is in memory already.
VERIFYING = Preparation("verifying", 0.5)

# Gets the files ready, and returns the runner's spec with them.
PrepareFiles = Callable[[OnProgress], Awaitable[RunnerSpec]]


@dataclass(slots=True)
class FetchProgress:
    """Changes what others see of a runner's status, not what the host itself goes by: bytes on devices."""

    what: Preparation
    is_over: bool = False  # from then on the files are loaded
    done_bytes: int = 0
    total_bytes: int = 0

    def tell(self, done_bytes: int, total_bytes: int) -> None:
        """So much is done. Another source may have to begin anew: the figure stays where it was."""
        self.done_bytes, self.total_bytes = max(done_bytes, self.done_bytes), total_bytes

    def show(self, status: cluster_pb2.RunnerStatus) -> None:
        """Change a status to what others see."""
        what = self.what
        if self.is_over:
            status.load_fraction = what.share + (1 - what.share) * status.load_fraction
        elif status.state == cluster_pb2.RUNNER_STATE_LAUNCHED:
            status.state = cluster_pb2.RUNNER_STATE_LOADING
            status.load_note = what.note
            status.load_bytes_total = self.total_bytes
            status.load_fraction = what.share * self.done_bytes / max(1, self.total_bytes)


def show_last_error(status: cluster_pb2.RunnerStatus, log_path: Path) -> None:
    """Fill in the last error line of a load, which explains one that stands still; not after a load."""
    if status.state in LOADING:
        status.last_error_line = last_error_line(read_log_tail(log_path))

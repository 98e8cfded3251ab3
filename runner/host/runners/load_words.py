"""What the log of a runner that loads says last of what went wrong: for those who wait for a load that stands still."""

from pathlib import Path

from protos import cluster_pb2
from runner.core.host.exits import last_error_line
from runner.host.runners.process import read_log_tail

_LOADS = (cluster_pb2.RUNNER_STATE_LAUNCHED, cluster_pb2.RUNNER_STATE_LOADING)


def show_last_error(status: cluster_pb2.RunnerStatus, log_path: Path) -> None:
    """Fill it in; nothing of a runner that serves or has ended."""
    if status.state in _LOADS:
        status.last_error_line = last_error_line(read_log_tail(log_path))

"""The record that a host keeps of a runner, from one status to the next."""

from pathlib import Path

from protos import cluster_pb2
from runner.host.lending.borrowing import with_status

STATUSES = 20_000
GROWTH_KIB_MAX = 1024  # a message that lives on takes 4 MiB for as many


def resident_kib() -> int:
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0])


def test_statuses_without_end_take_no_memory() -> None:
    record = cluster_pb2.RunnerRecord(pid=7)
    status = cluster_pb2.RunnerStatus(slots_busy=1)
    status.memory.host.weights_bytes = 5
    for _ in range(1000):
        record = with_status(record, status)
    before_kib = resident_kib()
    for _ in range(STATUSES):
        record = with_status(record, status)
    assert resident_kib() - before_kib <= GROWTH_KIB_MAX
    assert (record.pid, record.status.slots_busy, record.status.memory.host.weights_bytes) == (7, 1, 5)


def test_progress_never_goes_back() -> None:
    record = cluster_pb2.RunnerRecord()
    for told, kept in ((0.5, 0.5), (0.25, 0.5), (1.0, 1.0)):
        record = with_status(record, cluster_pb2.RunnerStatus(load_fraction=told))
        assert record.status.load_fraction == kept

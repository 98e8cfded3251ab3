"""Number of cores that a runner computes on, from fake trees of the kernel."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from runner.core.threads.cores import parse_cpus
from runner.cores import computing_cores


@dataclass(frozen=True)
class Machine:
    """A root directory with /proc and /sys below it."""

    root: Path

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")

    def cpu(self, number: int, *, siblings: str = "", capacity: int | None = None) -> None:
        place = f"sys/devices/system/cpu/cpu{number}"
        self.write(f"{place}/topology/thread_siblings_list", siblings or str(number))
        if capacity is not None:
            self.write(f"{place}/cpu_capacity", str(capacity))

    def cores(self, cpus: int) -> int:
        return computing_cores(filesystem_root=self.root, cpus=range(cpus))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def wide(machine: Machine) -> Machine:
    for number in range(16):
        machine.cpu(number)
    return machine


def test_hardware_threads_of_one_core_count_once(machine: Machine) -> None:
    for number in range(8):
        machine.cpu(number, siblings=f"{number % 4},{number % 4 + 4}")
    assert machine.cores(8) == 4
    assert machine.cores(3) == 3


def test_without_any_word_of_the_kernel_every_processor_is_a_core(machine: Machine) -> None:
    assert machine.cores(6) == 6


def test_of_two_kinds_only_performance_cores_count(wide: Machine) -> None:
    wide.write("sys/devices/cpu_core/cpus", "0-3,6")
    assert wide.cores(16) == 5
    assert wide.cores(2) == 2


def test_a_process_that_may_run_on_slow_cores_alone_uses_them(wide: Machine) -> None:
    wide.write("sys/devices/cpu_core/cpus", "8-15")
    assert wide.cores(4) == 4


def test_where_the_kernel_tells_what_cores_can_do_the_weak_ones_are_left_out(machine: Machine) -> None:
    for number, capacity in enumerate((1024, 871, 871, 398, 398, 398)):
        machine.cpu(number, capacity=capacity)
    assert machine.cores(6) == 3


@pytest.mark.parametrize(("limit", "cores"), [("max 100000", 16), ("250000 100000", 2), ("50000 100000", 1)])
def test_a_container_computes_on_what_its_cgroup_grants(wide: Machine, limit: str, cores: int) -> None:
    wide.write("proc/self/cgroup", "0::/machine/container")
    wide.write("proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw")
    wide.write("sys/fs/cgroup/machine/cpu.max", "800000 100000")
    wide.write("sys/fs/cgroup/machine/container/cpu.max", limit)
    assert wide.cores(16) == min(8, cores)


def test_version_1_has_files_of_its_own(wide: Machine) -> None:
    wide.write("proc/self/cgroup", "4:cpu,cpuacct:/box\n3:memory:/")
    wide.write("proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct")
    wide.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1")
    wide.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    wide.write("sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "300000")
    wide.write("sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000")
    assert wide.cores(16) == 3


def test_lists_of_processors_are_read() -> None:
    assert parse_cpus("0-3,8\n") == frozenset({0, 1, 2, 3, 8})
    assert parse_cpus("") == frozenset()
    with pytest.raises(ValueError, match="invalid literal"):
        parse_cpus("all")

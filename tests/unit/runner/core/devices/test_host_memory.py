"""Free host RAM from fake /proc and cgroup trees."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.devices.memory import CgroupMemory, SystemMemory, combine_limits, parse_meminfo
from runner.ram import read_host_memory

GIB = 1024**3
MEMINFO = f"MemTotal: {16 * GIB // 1024} kB\nMemFree: 1024 kB\nMemAvailable: {8 * GIB // 1024} kB\nBuffers: 0 kB\n"


@dataclass(frozen=True)
class Machine:
    """A root directory with /proc and cgroup file systems below it."""

    root: Path

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def cgroup_v2(self, path: str, *, limit: str, used: int, inactive: int) -> None:
        self.write(f"sys/fs/cgroup/{path}/memory.max", limit)
        self.write(f"sys/fs/cgroup/{path}/memory.current", str(used))
        self.write(f"sys/fs/cgroup/{path}/memory.stat", f"anon 5\ninactive_file {inactive}\n")

    def cgroup_v1(self, path: str, *, limit: int, used: int, inactive: int) -> None:
        self.write(f"sys/fs/cgroup/memory/{path}/memory.limit_in_bytes", str(limit))
        self.write(f"sys/fs/cgroup/memory/{path}/memory.usage_in_bytes", str(used))
        self.write(f"sys/fs/cgroup/memory/{path}/memory.stat", f"inactive_file 1\ntotal_inactive_file {inactive}\n")

    def swap(self) -> tuple[int, int]:
        memory = read_host_memory(proc=self.root / "proc", filesystem_root=self.root)
        return memory.swap_total_bytes, memory.swap_free_bytes

    def read(self) -> tuple[int, int, str]:
        memory = read_host_memory(proc=self.root / "proc", filesystem_root=self.root)
        return memory.total_bytes, memory.free_bytes, memory.source


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    machine.write("proc/meminfo", MEMINFO)
    return machine


def mounted_v2(machine: Machine, *, path: str, root: str = "/") -> None:
    machine.write("proc/self/cgroup", f"0::{path}\n")
    machine.write("proc/self/mountinfo", f"30 20 0:26 {root} /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n")


def mounted_v1(machine: Machine, *, path: str, root: str = "/") -> None:
    machine.write("proc/self/cgroup", f"9:name=systemd:/\n4:memory:{path}\n0::/\n")
    machine.write(
        "proc/self/mountinfo",
        "30 20 0:26 / /sys/fs/cgroup/cpu rw shared:1 - cgroup cgroup rw,cpu\n"
        f"31 20 0:27 {root} /sys/fs/cgroup/memory rw shared:2 - cgroup cgroup rw,memory\n",
    )


pytestmark = pytest.mark.behaviour("B-131")


def test_without_cgroups_the_kernels_own_estimate_counts(machine: Machine) -> None:
    assert machine.read() == (16 * GIB, 8 * GIB, "meminfo")


def test_old_kernels_count_free_buffers_and_cache() -> None:
    memory = parse_meminfo("MemTotal: 100 kB\nMemFree: 10 kB\nBuffers: 5 kB\nCached: 20 kB\n")
    assert memory.available_bytes == 35 * 1024


def test_page_cache_of_a_v2_cgroup_is_not_counted_as_used(machine: Machine) -> None:
    mounted_v2(machine, path="/app")
    machine.cgroup_v2("app", limit=str(4 * GIB), used=3 * GIB, inactive=2 * GIB)
    assert machine.read() == (4 * GIB, 3 * GIB, "cgroup")


def test_the_tightest_cgroup_on_the_path_decides_not_the_nearest(machine: Machine) -> None:
    mounted_v2(machine, path="/pod/app")
    machine.cgroup_v2("pod", limit=str(2 * GIB), used=1 * GIB, inactive=0)
    machine.cgroup_v2("pod/app", limit="max", used=1 * GIB, inactive=0)
    assert machine.read() == (2 * GIB, 1 * GIB, "cgroup")


def test_a_cgroup_beside_the_path_does_not_matter(machine: Machine) -> None:
    mounted_v2(machine, path="/app")
    machine.cgroup_v2("other", limit="1", used=1, inactive=0)
    machine.cgroup_v2("app", limit="max", used=1, inactive=0)
    assert machine.read() == (16 * GIB, 8 * GIB, "meminfo")


def test_a_container_that_sees_only_its_own_part_of_the_tree_is_limited_by_it(machine: Machine) -> None:
    mounted_v2(machine, path="/../../outside")
    machine.cgroup_v2("", limit=str(GIB), used=0, inactive=0)
    assert machine.read() == (GIB, GIB, "cgroup")


def test_version_1_uses_the_totals_of_the_subtree(machine: Machine) -> None:
    mounted_v1(machine, path="/docker/x", root="/docker/x")
    machine.cgroup_v1("", limit=4 * GIB, used=4 * GIB, inactive=1 * GIB)
    assert machine.read() == (4 * GIB, GIB, "cgroup")


def test_version_1_reads_every_level_up_to_the_mount(machine: Machine) -> None:
    mounted_v1(machine, path="/a/b")
    machine.cgroup_v1("", limit=2**63 - 4096, used=9 * GIB, inactive=0)
    machine.cgroup_v1("a", limit=3 * GIB, used=1 * GIB, inactive=0)
    machine.cgroup_v1("a/b", limit=2**63 - 4096, used=1 * GIB, inactive=0)
    assert machine.read() == (3 * GIB, 2 * GIB, "cgroup")


def test_a_full_cgroup_has_nothing_free(machine: Machine) -> None:
    mounted_v2(machine, path="/app")
    machine.cgroup_v2("app", limit=str(GIB), used=2 * GIB, inactive=0)
    assert machine.read() == (GIB, 0, "cgroup")


SWAP = f"SwapTotal: {4 * GIB // 1024} kB\nSwapFree: {3 * GIB // 1024} kB\n"


def test_swap_is_told_beside_ram_and_counted_only_where_it_is_asked_for(machine: Machine) -> None:
    assert machine.swap() == (0, 0)
    machine.write("proc/meminfo", MEMINFO + SWAP)
    assert machine.read() == (16 * GIB, 8 * GIB, "meminfo")
    assert machine.swap() == (4 * GIB, 3 * GIB)
    memory = read_host_memory(proc=machine.root / "proc", filesystem_root=machine.root).counting_swap()
    assert (memory.total_bytes, memory.free_bytes, memory.source) == (20 * GIB, 11 * GIB, "meminfo+swap")


def test_the_tightest_v2_limit_of_swap_decides_also_in_a_group_without_a_limit_of_ram(machine: Machine) -> None:
    machine.write("proc/meminfo", MEMINFO + SWAP)
    mounted_v2(machine, path="/pod/app")
    machine.cgroup_v2("pod", limit="max", used=GIB, inactive=0)
    machine.write("sys/fs/cgroup/pod/memory.swap.max", f"{2 * GIB}\n")
    machine.write("sys/fs/cgroup/pod/memory.swap.current", f"{GIB}\n")
    machine.cgroup_v2("pod/app", limit="max", used=GIB, inactive=0)
    machine.write("sys/fs/cgroup/pod/app/memory.swap.max", "max\n")
    assert machine.swap() == (2 * GIB, GIB)
    machine.write("sys/fs/cgroup/pod/app/memory.swap.max", "0\n")
    machine.write("sys/fs/cgroup/pod/app/memory.swap.current", "0\n")
    assert machine.swap() == (0, 0)
    assert machine.read() == (16 * GIB, 8 * GIB, "meminfo")


def test_version_1_limits_ram_and_swap_together(machine: Machine) -> None:
    machine.write("proc/meminfo", MEMINFO + SWAP)
    mounted_v1(machine, path="/docker/x", root="/docker/x")
    machine.cgroup_v1("", limit=4 * GIB, used=3 * GIB, inactive=0)
    machine.write("sys/fs/cgroup/memory/memory.memsw.limit_in_bytes", str(2**63 - 4096))
    machine.write("sys/fs/cgroup/memory/memory.memsw.usage_in_bytes", str(3 * GIB))
    assert machine.swap() == (4 * GIB, 3 * GIB)
    machine.write("sys/fs/cgroup/memory/memory.memsw.limit_in_bytes", str(6 * GIB))
    machine.write("sys/fs/cgroup/memory/memory.memsw.usage_in_bytes", str(3 * GIB + GIB // 2))
    assert machine.swap() == (2 * GIB, 3 * GIB // 2)
    machine.write("sys/fs/cgroup/memory/memory.memsw.limit_in_bytes", str(4 * GIB))
    assert machine.swap() == (0, 0)


@given(
    st.integers(0, 2**50),
    st.integers(0, 2**50),
    st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 2**50), st.integers(0, 2**50)), max_size=5),
)
def test_free_is_never_negative_nor_above_what_any_limit_allows(
    total: int, available: int, groups: list[tuple[int, int, int]]
) -> None:
    cgroups = [CgroupMemory(limit_bytes=x, used_bytes=y, inactive_file_bytes=z) for x, y, z in groups]
    memory = combine_limits(SystemMemory(total_bytes=total, available_bytes=available), cgroups)
    assert 0 <= memory.free_bytes <= memory.total_bytes <= total
    assert all(memory.free_bytes <= cgroup.headroom_bytes for cgroup in cgroups)

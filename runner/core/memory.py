"""How much host RAM a new allocation could get, from what /proc and the cgroups say. Pure: numbers in, numbers out."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemMemory:
    """The machine's RAM. `available_bytes` counts page cache that can be dropped."""

    total_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupMemory:
    """One cgroup on the path from the process to the root that has a limit."""

    limit_bytes: int
    used_bytes: int
    inactive_file_bytes: int  # page cache that the kernel drops before it refuses memory

    @property
    def headroom_bytes(self) -> int:
        """What the group may still take; page cache that can be dropped does not count as used."""
        return max(0, self.limit_bytes - max(0, self.used_bytes - self.inactive_file_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """What the host pool has. `source` names what limits `free_bytes`: "meminfo" or "cgroup"."""

    total_bytes: int
    free_bytes: int
    source: str


def parse_meminfo(text: str) -> SystemMemory:
    """Read /proc/meminfo. Kernels before 3.14 have no MemAvailable: free, buffers and cache stand in for it.

    Raises:
        ValueError: no MemTotal in it.
    """
    kib: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        figure = rest.split()
        if figure and figure[0].isdecimal():
            kib[name] = int(figure[0])
    if "MemTotal" not in kib:
        raise ValueError("no MemTotal in /proc/meminfo")
    stand_in = kib.get("MemFree", 0) + kib.get("Buffers", 0) + kib.get("Cached", 0)
    return SystemMemory(total_bytes=kib["MemTotal"] * 1024, available_bytes=kib.get("MemAvailable", stand_in) * 1024)


def combine_limits(system: SystemMemory, cgroups: Iterable[CgroupMemory]) -> HostMemory:
    """The least of the machine and of every cgroup on the path: each of them can refuse."""
    total_bytes, free_bytes, source = system.total_bytes, system.available_bytes, "meminfo"
    for cgroup in cgroups:
        total_bytes = min(total_bytes, cgroup.limit_bytes)
        if cgroup.headroom_bytes < free_bytes:
            free_bytes, source = cgroup.headroom_bytes, "cgroup"
    return HostMemory(total_bytes=total_bytes, free_bytes=min(free_bytes, total_bytes), source=source)

"""Host RAM that a new allocation could get, from /proc and the cgroups. Pure: numbers in, numbers out."""

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemMemory:
    """The machine's RAM. `available_bytes` counts page cache that can be dropped."""

    total_bytes: int
    available_bytes: int
    swap_total_bytes: int = 0
    swap_free_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupMemory:
    """One cgroup on the path from the process to the root that has a limit, of RAM or of swap."""

    limit_bytes: int
    used_bytes: int
    inactive_file_bytes: int = 0  # page cache that the kernel drops before it refuses memory

    @property
    def headroom_bytes(self) -> int:
        """Return the bytes that the group may still take; page cache that can be dropped does not count as used."""
        return max(0, self.limit_bytes - max(0, self.used_bytes - self.inactive_file_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Memory of the host pool. `source` names the limit of `free_bytes`: "meminfo" or "cgroup". Swap is separate."""

    total_bytes: int
    free_bytes: int
    source: str
    swap_total_bytes: int = 0
    swap_free_bytes: int = 0

    def counting_swap(self) -> "HostMemory":
        """Return the same where swap counts as RAM: `total_bytes` and `free_bytes` have it, and `source` says so."""
        if not self.swap_total_bytes:
            return self
        return replace(
            self,
            total_bytes=self.total_bytes + self.swap_total_bytes,
            free_bytes=self.free_bytes + self.swap_free_bytes,
            source=f"{self.source}+swap",
        )


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
    return SystemMemory(
        total_bytes=kib["MemTotal"] * 1024,
        available_bytes=kib.get("MemAvailable", stand_in) * 1024,
        swap_total_bytes=kib.get("SwapTotal", 0) * 1024,
        swap_free_bytes=kib.get("SwapFree", 0) * 1024,
    )


def combine_limits(
    system: SystemMemory, cgroups: Iterable[CgroupMemory], swaps: Iterable[CgroupMemory] = ()
) -> HostMemory:
    """Return the least of the machine and of every cgroup on the path: each of them can refuse. Swap likewise."""
    total_bytes, free_bytes, source = system.total_bytes, system.available_bytes, "meminfo"
    for cgroup in cgroups:
        total_bytes = min(total_bytes, cgroup.limit_bytes)
        if cgroup.headroom_bytes < free_bytes:
            free_bytes, source = cgroup.headroom_bytes, "cgroup"
    swap_total_bytes, swap_free_bytes = system.swap_total_bytes, system.swap_free_bytes
    for swap in swaps:
        swap_total_bytes = min(swap_total_bytes, swap.limit_bytes)
        swap_free_bytes = min(swap_free_bytes, swap.headroom_bytes)
    return HostMemory(
        total_bytes=total_bytes,
        free_bytes=min(free_bytes, total_bytes),
        source=source,
        swap_total_bytes=swap_total_bytes,
        swap_free_bytes=min(swap_free_bytes, swap_total_bytes),
    )

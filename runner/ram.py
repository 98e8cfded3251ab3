"""Reads host RAM from /proc/meminfo and from every memory cgroup between this process and the root, version 1 and 2."""

from dataclasses import dataclass
from pathlib import Path

from runner.cgroups import cgroups_of
from runner.core.devices.memory import CgroupMemory, HostMemory, combine_limits, parse_meminfo

PROC = Path("/proc")
# Version 1 writes "no limit" as the largest number of pages.
_NO_LIMIT_V1 = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    """File names and the key of page cache by cgroup version. Version 1 counts RAM and swap together as `swap_…`."""

    limit: str
    used: str
    inactive_key: str
    swap_limit: str
    swap_used: str


_VERSION_1 = _Files(
    limit="memory.limit_in_bytes",
    used="memory.usage_in_bytes",
    inactive_key="total_inactive_file",
    swap_limit="memory.memsw.limit_in_bytes",
    swap_used="memory.memsw.usage_in_bytes",
)
_VERSION_2 = _Files(
    limit="memory.max",
    used="memory.current",
    inactive_key="inactive_file",
    swap_limit="memory.swap.max",
    swap_used="memory.swap.current",
)


def read_host_memory(*, proc: Path = PROC, filesystem_root: Path = Path("/")) -> HostMemory:
    """Total and free RAM and swap as this process can get it now. The arguments let tests bring their own trees.

    Raises:
        OSError, ValueError: /proc is not mounted, or is none.
    """
    system = parse_meminfo((proc / "meminfo").read_text())
    groups = cgroups_of("memory", proc=proc, filesystem_root=filesystem_root)
    levels = [(group.directory, _VERSION_1 if group.version == 1 else _VERSION_2) for group in groups]
    limits = (_read_cgroup(directory, files) for directory, files in levels)
    swaps = (_read_swap(directory, files) for directory, files in levels if system.swap_total_bytes)
    return combine_limits(
        system,
        [limit for limit in limits if limit is not None],
        [limit for limit in swaps if limit is not None],
    )


def _read_cgroup(directory: Path, files: _Files) -> CgroupMemory | None:
    """Return the group's limit and use, or None if it has no limit (or no memory controller)."""
    try:
        limit = (directory / files.limit).read_text().strip()
        if limit == "max":
            return None
        used_bytes = int((directory / files.used).read_text())
        inactive_bytes = 0
        for line in (directory / "memory.stat").read_text().splitlines():
            key, _, figure = line.partition(" ")
            if key == files.inactive_key:
                inactive_bytes = int(figure)
        return CgroupMemory(limit_bytes=int(limit), used_bytes=used_bytes, inactive_file_bytes=inactive_bytes)
    except (OSError, ValueError):
        return None


def _read_swap(directory: Path, files: _Files) -> CgroupMemory | None:
    """Return the group's limit and use of swap, or None if it has no limit (or swap is not counted)."""
    try:
        limit = (directory / files.swap_limit).read_text().strip()
        if limit == "max":
            return None
        limit_bytes, used_bytes = int(limit), int((directory / files.swap_used).read_text())
        if files is _VERSION_1:
            if limit_bytes >= _NO_LIMIT_V1:
                return None
            limit_bytes -= int((directory / files.limit).read_text())
            used_bytes -= int((directory / files.used).read_text())
        return CgroupMemory(limit_bytes=max(0, limit_bytes), used_bytes=max(0, used_bytes))
    except (OSError, ValueError):
        return None

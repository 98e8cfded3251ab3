"""Reads host RAM from /proc/meminfo and from every memory cgroup between this process and the root, version 1 and 2."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from runner.core.memory import CgroupMemory, CgroupSwap, HostMemory, combine_limits, parse_meminfo

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mount:
    """A mounted cgroup hierarchy that controls memory. `root` is the cgroup that appears at `point`."""

    version: int
    root: str
    point: Path


def read_host_memory(*, proc: Path = PROC, filesystem_root: Path = Path("/")) -> HostMemory:
    """Total and free RAM and swap as this process can get it now. The arguments let tests bring their own trees.

    Raises:
        OSError, ValueError: /proc is not mounted, or is none.
    """
    system = parse_meminfo((proc / "meminfo").read_text())
    levels = list(_cgroups(proc, filesystem_root))
    limits = (_read_cgroup(directory, files) for directory, files in levels)
    swaps = (_read_swap(directory, files) for directory, files in levels if system.swap_total_bytes)
    return combine_limits(
        system,
        [limit for limit in limits if limit is not None],
        [limit for limit in swaps if limit is not None],
    )


def _cgroups(proc: Path, filesystem_root: Path) -> Iterator[tuple[Path, _Files]]:
    """Every directory on the path, with how its files are called."""
    try:
        memberships = (proc / "self/cgroup").read_text()
        mounts = (proc / "self/mountinfo").read_text()
    except OSError:
        return  # no cgroups on this kernel
    for mount in _memory_mounts(mounts, filesystem_root):
        directory = _directory(mount, _membership(memberships, mount.version))
        files = _VERSION_1 if mount.version == 1 else _VERSION_2
        while True:
            yield directory, files
            if directory == mount.point:
                break
            directory = directory.parent


def _memory_mounts(mountinfo: str, filesystem_root: Path) -> Iterator[_Mount]:
    """See proc(5): `id parent dev root point options [optional…] - type source super_options`."""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        point = filesystem_root / _unescaped(fields[4]).lstrip("/")
        if kind[0] == "cgroup2":
            yield _Mount(version=2, root=_unescaped(fields[3]), point=point)
        elif kind[0] == "cgroup" and "memory" in kind[2].split(","):
            yield _Mount(version=1, root=_unescaped(fields[3]), point=point)


def _unescaped(path: str) -> str:
    return path.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")


def _membership(text: str, version: int) -> str:
    """The process's path in the hierarchy: line `0::/path` for version 2, `n:memory:/path` for version 1."""
    for line in text.splitlines():
        number, controllers, path = [*line.split(":", 2), "", "", ""][:3]
        is_version_2 = number == "0" and not controllers
        is_version_1 = "memory" in controllers.split(",")
        if is_version_2 if version == 2 else is_version_1:
            return path
    return "/"


def _directory(mount: _Mount, path: str) -> Path:
    """Where the process's cgroup is seen: containers may see only their own part of the tree, under another path."""
    try:
        inside = PurePosixPath(path).relative_to(mount.root)
    except ValueError:
        return mount.point
    directory = mount.point / inside
    return directory if ".." not in inside.parts and directory.is_dir() else mount.point


def _read_cgroup(directory: Path, files: _Files) -> CgroupMemory | None:
    """The group's limit and use, or None if it has no limit (or no memory controller)."""
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


def _read_swap(directory: Path, files: _Files) -> CgroupSwap | None:
    """The group's limit and use of swap, or None if it has no limit (or nobody counts swap)."""
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
        return CgroupSwap(limit_bytes=max(0, limit_bytes), used_bytes=max(0, used_bytes))
    except (OSError, ValueError):
        return None

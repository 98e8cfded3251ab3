"""The cgroups of this process: every directory between it and the root of a hierarchy, version 1 and 2."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True, slots=True, kw_only=True)
class Cgroup:
    """One level. `version` determines the names of its files."""

    directory: Path
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mount:
    """A mounted hierarchy that has the controller. `root` is the cgroup that appears at `point`."""

    version: int
    root: str
    point: Path


def cgroups_of(controller: str, *, proc: Path, filesystem_root: Path) -> Iterator[Cgroup]:
    """From this process's own cgroup to the root, of every hierarchy with a controller ("memory", "cpu")."""
    try:
        memberships = (proc / "self/cgroup").read_text()
        mounts = (proc / "self/mountinfo").read_text()
    except OSError:
        return  # no cgroups on this kernel
    for mount in _mounts(mounts, controller, filesystem_root):
        directory = _directory(mount, _membership(memberships, controller, mount.version))
        while True:
            yield Cgroup(directory=directory, version=mount.version)
            if directory == mount.point:
                break
            directory = directory.parent


def _mounts(mountinfo: str, controller: str, filesystem_root: Path) -> Iterator[_Mount]:
    """See proc(5): `id parent dev root point options [optional…] - type source super_options`."""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        point = filesystem_root / _unescaped(fields[4]).lstrip("/")
        if kind[0] == "cgroup2":
            yield _Mount(version=2, root=_unescaped(fields[3]), point=point)
        elif kind[0] == "cgroup" and controller in kind[2].split(","):
            yield _Mount(version=1, root=_unescaped(fields[3]), point=point)


def _unescaped(path: str) -> str:
    return path.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")


def _membership(text: str, controller: str, version: int) -> str:
    """Return the process's path in the hierarchy: line `0::/path` for version 2, `n:memory:/path` for version 1."""
    for line in text.splitlines():
        number, controllers, path = [*line.split(":", 2), "", "", ""][:3]
        is_version_2 = number == "0" and not controllers
        is_version_1 = controller in controllers.split(",")
        if is_version_2 if version == 2 else is_version_1:
            return path
    return "/"


def _directory(mount: _Mount, path: str) -> Path:
    """Return the directory of the process's cgroup; containers may see it under another path."""
    try:
        inside = PurePosixPath(path).relative_to(mount.root)
    except ValueError:
        return mount.point
    directory = mount.point / inside
    return directory if ".." not in inside.parts and directory.is_dir() else mount.point

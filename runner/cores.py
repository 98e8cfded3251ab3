"""Asks the kernel how many cores this process may compute on: physical and fast ones, as many as it is granted."""

import contextlib
import os
from collections.abc import Collection, Iterator
from pathlib import Path

from runner.cgroups import Cgroup, cgroups_of
from runner.core.threads.cores import count_cores, fast_cpus, parse_cpus


def computing_cores(*, filesystem_root: Path = Path("/"), cpus: Collection[int] | None = None) -> int:
    """Return the number of threads that may compute. `cpus`: CPUs of the process; None: ask the kernel."""
    allowed = os.sched_getaffinity(0) if cpus is None else cpus
    devices = filesystem_root / "sys/devices"
    performance: frozenset[int] = frozenset()
    with contextlib.suppress(OSError, ValueError):
        performance = parse_cpus((devices / "cpu_core/cpus").read_text())  # of processors with cores of two kinds
    capacities, siblings = {}, {}
    for cpu in allowed:
        with contextlib.suppress(OSError, ValueError):
            capacities[cpu] = int((devices / f"system/cpu/cpu{cpu}/cpu_capacity").read_text())
        with contextlib.suppress(OSError):
            siblings[cpu] = (devices / f"system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    fast = fast_cpus(allowed, performance=performance, capacities=capacities)
    return count_cores(fast, siblings=siblings, quotas=_quotas(filesystem_root))


def _quotas(filesystem_root: Path) -> Iterator[float]:
    """Processors that each cgroup on the way to the root grants; none from those without a limit."""
    for group in cgroups_of("cpu", proc=filesystem_root / "proc", filesystem_root=filesystem_root):
        with contextlib.suppress(OSError, ValueError):
            quota, period = _quota_and_period(group)
            if quota != "max" and int(quota) > 0 and int(period) > 0:
                yield int(quota) / int(period)


def _quota_and_period(group: Cgroup) -> tuple[str, str]:
    if group.version == 1:
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        quota, period = ((group.directory / name).read_text().strip() for name in names)
        return quota, period
    quota, period = (group.directory / "cpu.max").read_text().split()
    return quota, period

"""Measures the memory that is used, for `core.dispatch.shedding`, and reports what `work` refused."""

import asyncio
import resource
from pathlib import Path

from common.telemetry.logs import get_logger
from gateway import metrics
from gateway.core.dispatch.shedding import Pressure
from gateway.pressure.work import WORK

log = get_logger()

LOOK_S = 0.1
# Refusals in so many looks get one log line: one for each would take longer than the refusal.
_LOOKS_OF_A_LINE = 10
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_STATM_RESIDENT = 1
_KIB = 1024

# Of this process.
PRESSURE = Pressure()


async def watch_pressure(pressure: Pressure) -> None:
    """Measure and report until cancelled."""
    page_bytes = resource.getpagesize()
    limit = memory_limit_bytes()
    metrics.WORK_LIMIT.set_function(lambda: WORK.limit)
    metrics.WORK_IN_PROGRESS.set_function(lambda: WORK.in_progress)
    looks = 0
    while True:
        await asyncio.sleep(LOOK_S)
        pressure.memory_share = _resident_pages() * page_bytes / limit
        looks = (looks + 1) % _LOOKS_OF_A_LINE
        if WORK.refused and not looks:
            metrics.OVERLOADED.inc(WORK.refused)
            log.warning("gateway.overloaded", refused=WORK.refused, limit=round(WORK.limit))
            WORK.refused = 0


def memory_limit_bytes() -> int:
    """Return the cgroup's limit if there is one below the machine's memory."""
    total = _machine_bytes()
    for name in _CGROUP_LIMITS:
        try:
            text = Path(name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdecimal():
            return min(total, int(text))
    return total


def _machine_bytes() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * _KIB
    raise AssertionError("the kernel names no MemTotal")


def _resident_pages() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[_STATM_RESIDENT])

"""Measures how late the event loop is and how much memory is used; `core.dispatch.shedding` decides on them."""

import asyncio
import resource
from pathlib import Path

from gateway.core.dispatch.shedding import Pressure

LOOK_S = 0.1
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_STATM_RESIDENT = 1
_KIB = 1024

# Of this process.
PRESSURE = Pressure()


async def watch_pressure(pressure: Pressure) -> None:
    """Measure until cancelled."""
    loop = asyncio.get_running_loop()
    page_bytes = resource.getpagesize()
    limit = memory_limit_bytes()
    while True:
        expected_s = loop.time() + LOOK_S
        await asyncio.sleep(LOOK_S)
        now_s = loop.time()
        used = _resident_pages() * page_bytes
        pressure.measured(now_s=now_s, lag_s=now_s - expected_s, memory_share=used / limit)


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

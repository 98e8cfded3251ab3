"""CPU time and memory that the system counts for a process and its threads."""

import contextlib
import time
from pathlib import Path

_SCHEDULER_CLOCK = 2  # CPUCLOCK_SCHED of a process, whose id the number of the clock has, too: clock_getcpuclockid(3)


def process_cpu_s(pid: int) -> float:
    """Return user and system time of a process, all threads, in nanoseconds' resolution."""
    return time.clock_gettime(~pid << 3 | _SCHEDULER_CLOCK)


def host_cpu_s(pid: int, *, engine_thread: str) -> float:
    """CPU time of all threads but the engine's and those that it made, which bear its name."""
    total_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            if (task / "comm").read_text().strip() != engine_thread:
                total_ns += int((task / "schedstat").read_text().split()[0])
    return total_ns / 1e9


def peak_resident_bytes(pid: int) -> int:
    """Return the peak of the process's memory in RAM, mapped files included."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0

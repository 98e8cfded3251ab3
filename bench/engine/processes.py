"""CPU time and memory that the system counts for a process and its threads."""

import contextlib
import os
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def process_cpu_s(pid: int) -> float:
    """Return user and system time of a process, all threads, in steps of a hundredth of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


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

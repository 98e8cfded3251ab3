"""Machine that a result was measured on."""

import os
import platform
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def core_count() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def describe_machine() -> dict[str, object]:
    """Processor, cores, memory, system."""
    processor = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    return {
        "processor": processor,
        "cores": core_count(),
        "ram_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def describe_commit() -> dict[str, object]:
    """Return the commit, and whether the tree differs from it."""
    return {"commit": _git("rev-parse", "HEAD"), "changed_files": len(_git("status", "--porcelain").splitlines())}


def load_average() -> float:
    """Of the last minute: what else ran."""
    return os.getloadavg()[0]


def shown_command(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command without the paths of this machine."""
    return tuple(Path(part).name if part.startswith("/") else part for part in command)


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()

"""A wrong clock for one process: `skewed_clock.c`, loaded before its C library."""

import subprocess
from pathlib import Path


def skewed_clock(directory: Path, *, skew_s: int = 0, rate: float = 1.0) -> dict[str, str]:
    """Return the environment of a process whose wall clock is off and whose clocks all run at a rate."""
    directory.mkdir(parents=True, exist_ok=True)
    library = directory / "skewed_clock.so"
    if not library.exists():
        source = Path(__file__).with_suffix(".c")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "SKEW_S": str(skew_s), "SKEW_RATE": str(rate)}

"""The speed of RAM as a note of a host: measured once for all hosts that tests start, not once in each new home."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def note_ram_speed(home: Path) -> None:
    """Leave the note that a host of this machine and engine leaves in its home. A home that has notes keeps them."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    notes = home / "devices.json"
    if not notes.exists():
        notes.write_text(_measured())


@cache
def _measured() -> str:
    command = [sys.executable, "-m", "runner", "probe", "--check", "cpu", "--backend", "CPU"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    report = json.loads(done.stdout)
    (cpu,) = report["devices"]
    return json.dumps({"cpu": {"speed_key": report["engine_build"], "speed_bytes_s": int(cpu["speed_bytes_s"])}})

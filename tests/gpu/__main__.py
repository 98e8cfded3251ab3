"""Run every check of docs/gpu.md on the cards of this machine, and write the figures with date and hardware.

    make gpu GPU="--models 1b 8b"

A check that fails or takes too long is a line of the report, and the next one goes on. Without a card it ends at once.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.machine import ROOT, describe_commit, describe_machine
from tests.gpu.card import Card, describe_driver, nvidia_cards
from tests.gpu.checks import CHECKS
from tools.model_zoo import build

# Beside the checks: commands that know cards themselves, with the seconds that they may take.
COMMANDS = (
    ("bench-engine", ("make", "bench-engine", "BENCH_OPTIONS=--models 8b --rounds 2 --device {id}"), 420),
    ("check", ("make", "check"), 480),
    ("integration on four devices of a card", ("make", "integration", "GGML_CUDA_DEVICES=4"), 480),
)


def run_checks(card: Card, models: list[str], names: list[str], directory: Path) -> list[dict[str, Any]]:
    """Run the checks one after the other; each row has its figures, or the error that ended it."""
    rows = []
    files = directory / "files"
    files.mkdir()
    for model in models:
        build(model, files)
        for number, name in enumerate(names):
            began_s, figures, error = time.monotonic(), [], ""
            home = directory / f"{model}-{number}"
            home.mkdir()
            (home / "files").symlink_to(files)
            try:
                for figure in CHECKS[name](card, model, home):
                    figures.append(asdict(figure))
                    print(f"{model}, {name}: {figure.name}: {figure.measured} ({figure.asked})", flush=True)
            except Exception:  # noqa: BLE001  # whatever it is, the next check may show more
                error = traceback.format_exc(limit=3)
                print(f"{model}, {name}: {error}", flush=True)
            seconds = round(time.monotonic() - began_s, 1)
            rows.append({"check": name, "model": model, "seconds": seconds, "figures": figures, "error": error})
    return rows


def run_commands(card: Card) -> list[dict[str, Any]]:
    """Run what measures and tests cards without these checks."""
    rows = []
    for name, words, limit_s in COMMANDS:
        began_s = time.monotonic()
        command = [word.format(id=card.id) for word in words]
        # `timeout` ends all processes of the command, not make alone, which would leave its tests on the card.
        limited = ["timeout", "--kill-after", "10", str(limit_s), *command]
        done = subprocess.run(limited, cwd=ROOT, capture_output=True, text=True, check=False)
        status, said = done.returncode, done.stdout + done.stderr
        print(f"{name}: exit {status}\n{said[-4000:]}", flush=True)
        seconds = round(time.monotonic() - began_s, 1)
        rows.append({"check": name, "status": status, "seconds": seconds, "end": said.splitlines()[-40:]})
    return rows


def main() -> int:
    """Run the command. 1: a figure was missed, a check failed, or there is no card."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["1b", "8b"], help="of the zoo")
    parser.add_argument("--checks", nargs="+", default=list(CHECKS), choices=CHECKS)
    parser.add_argument("--only-checks", action="store_true", help="without benches and suites")
    parser.add_argument("--out", type=Path, help="default: bench/results/<date>-gpu.json")
    asked = parser.parse_args()
    cards = nvidia_cards()
    if not cards:
        print("there is no card here that nvidia-smi lists; nothing was checked")
        return 1
    card = cards[0]
    with tempfile.TemporaryDirectory(prefix="puna-gpu-") as name:
        rows = run_checks(card, asked.models, asked.checks, Path(name))
    if not asked.only_checks:
        rows += run_commands(card)
    report = {
        **describe_commit(),
        "machine": describe_machine(),
        "driver": describe_driver(),
        "card": card.name,
        "rows": rows,
    }
    out = asked.out or ROOT / "bench" / "results" / f"{datetime.now(UTC).date().isoformat()}-gpu.json"
    out.write_text(json.dumps(report, indent=1) + "\n")
    missed = [row for row in rows if row.get("error") or row.get("status")]
    missed += [row for row in rows if not all(figure["met"] for figure in row.get("figures", []))]
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Run the soak alone and write its report: `make soak`, or `python -m tests.faults.soak --seconds 600`."""

import argparse
import asyncio
import json
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.machine import ROOT, describe_commit, describe_machine
from tests.faults.bars.__main__ import run_bar, shown
from tests.faults.bars.bar import Round
from tests.faults.bars.soak import FULL_S, SOAK, slopes


def main() -> int:
    """Run the soak and write its report; 1 if it was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    today = datetime.now(UTC).date().isoformat()
    parser.add_argument("--seconds", type=int, default=FULL_S)
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / f"{today}-soak.json")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the cluster is ended
    rounds: list[Round] = []
    report: dict[str, Any] = asyncio.run(run_bar(SOAK, options.seconds, rounds))
    print(shown(report))
    last = next((one for one in rounds if "processes" in one), None)
    by_process = slopes(last["processes"], last["seconds"]) if last else {}
    content = {**describe_commit(), "machine": describe_machine(), "bars": [report], "slopes": by_process}
    options.out.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return 0 if report["met"] else 1


if __name__ == "__main__":
    sys.exit(main())

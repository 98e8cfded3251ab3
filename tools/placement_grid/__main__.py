"""`python -m tools.placement_grid [--count N] [--output FILE]`: run the grid, print the table, keep every figure."""

import argparse
import datetime
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import orjson

from bench.machine import describe_commit, describe_machine, load_average
from tools.placement_grid.configurations import ROOM_MAX, ROOM_MIN, SEED, grid
from tools.placement_grid.planner import band_table, bands, in_other_orders
from tools.placement_grid.report import bars, complaints, scores, table
from tools.placement_grid.run import Cell, run_grid

RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results"


def main() -> int:
    """0 if the promise holds, 1 with what does not."""
    parser = argparse.ArgumentParser(prog="python -m tools.placement_grid")
    parser.add_argument("--count", type=int, default=None, help="so many configurations, spread over the grid")
    parser.add_argument("--output", type=Path, default=None, metavar="FILE", help="default: bench/results/DATE-…")
    args = parser.parse_args()
    configurations = grid(count=args.count)
    load_before, start_s = load_average(), time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        cells = run_grid(configurations, Path(directory), say=_say)
    elapsed_s = time.monotonic() - start_s
    found, wrong = scores(cells), complaints(cells)
    by_size = bands(cells)
    print(f"\n{len(cells)} configurations in {elapsed_s:.0f} s\n{table(found)}\n\n{band_table(by_size)}")
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    output = args.output or RESULTS / f"{today}-placement-grid.json"
    result = {
        "summary": {
            "configurations": len(cells),
            "holds": not wrong,
            "complaints": wrong,
            "bars": bars(cells),
            "predictions": [{**asdict(one), "false_refusal_share": one.false_refusal_share} for one in found],
            "planner_false_refusal_shares_in_other_orders": [round(one, 4) for one in in_other_orders(cells)],
            "margin_by_size": [asdict(one) for one in by_size],
        },
        "measured_at": datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds"),
        **describe_commit(),
        "machine": describe_machine(),
        "load_average_before": load_before,
        "elapsed_s": round(elapsed_s, 1),
        "options": {"seed": SEED, "room_min": ROOM_MIN, "room_max": ROOM_MAX},
        "cells": [asdict(cell) for cell in cells],
    }
    output.write_bytes(orjson.dumps(result, option=orjson.OPT_APPEND_NEWLINE))
    for complaint in wrong:
        print(f"does not hold: {complaint}", file=sys.stderr)
    return 1 if wrong else 0


def _say(cell: Cell) -> None:
    verdict = "loaded" if cell.loaded else "refused"
    print(f"{cell.configuration.number:4} {cell.configuration.name:60} {verdict:8} {cell.seconds:5.1f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())

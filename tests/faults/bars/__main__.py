"""Run the bars of reliability at full strength: `make faults`, or `python -m tests.faults.bars --bars redis_down`.

Rounds that wait are shared among clusters side by side. Every round is kept in the state file, so that a run that was
interrupted goes on where it was. The report is one JSON.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.machine import ROOT, describe_commit, describe_machine, load_average
from tests.faults.bars.bar import Bar, Round, judged, shares
from tests.faults.bars.catalogue import BARS
from tests.waiting import Stopwatch

CLUSTERS_MAX = len(os.sched_getaffinity(0)) + 1  # with more, requests are refused for want of a processor
STATE = ROOT / "build" / "faults-state.json"


def main() -> int:
    """Run what is asked for and not done yet; 1 if a bar was missed."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that clusters are ended
    state: dict[str, Any] = json.loads(STATE.read_text()) if STATE.exists() and not options.anew else {}
    commit = describe_commit()["commit"]

    async def run(bar: Bar) -> None:
        size = bar.sample if options.sample else max(1, round(bar.full * options.share))
        entry = state.setdefault(bar.key, {})
        if entry.get("size") != size or entry.get("commit") != commit:
            entry.clear()
            entry |= {"size": size, "commit": commit, "rounds": []}
        if "report" in entry:
            return
        if why := bar.needs():
            entry["report"] = _not_run(bar, why)
        else:
            keep = lambda: _write(STATE, state)  # noqa: E731
            entry["report"] = await run_bar(bar, size, entry["rounds"], keep)
        _write(STATE, state)
        print(shown(entry["report"]), flush=True)

    chosen = [bar for bar in BARS if bar.key in (options.bars or [bar.key]) and (bar.sample or not options.sample)]
    asyncio.run(run_in_turn(chosen, run))
    reports = [state.get(bar.key, {}).get("report") or _not_run(bar, "not run yet: make faults") for bar in BARS]
    _write(options.out, {**describe_commit(), "machine": describe_machine(), "bars": reports})
    return 0 if all(one["met"] for one in reports) else 1


async def run_in_turn(bars: Sequence[Bar], run: Callable[[Bar], Awaitable[None]]) -> None:
    """Run bars one after the other, and beside them what lasts throughout."""

    async def one_by_one(*, is_throughout: bool) -> None:
        for bar in bars:
            if bar.is_throughout is is_throughout:
                await run(bar)

    await asyncio.gather(one_by_one(is_throughout=True), one_by_one(is_throughout=False))


def _not_run(bar: Bar, why: str) -> dict[str, Any]:
    return {"bar": bar.number, "title": bar.title, "met": False, "not_run": why}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bars", nargs="*", choices=[bar.key for bar in BARS], help="all, if none is named")
    parser.add_argument("--sample", action="store_true", help="the size that continuous integration runs")
    parser.add_argument("--share", type=float, default=1.0, help="of the full size")
    parser.add_argument("--anew", action="store_true", help="forget the rounds of an earlier run")
    today = datetime.now(UTC).date().isoformat()
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / f"{today}-faults.json")
    return parser.parse_args()


async def run_bar(bar: Bar, size: int, rounds: list[Round], keep: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Run one bar from the rounds that are done; `keep` is called after each."""
    watch, begun_s, load = Stopwatch(), time.time(), load_average()
    directory = Path(tempfile.mkdtemp(prefix=f"puna-faults-{bar.key}-"))

    if not bar.per_round:  # what an interrupted run left is no part of the whole
        rounds.clear()

    async def run_cluster(place: Path, numbers: list[int]) -> None:
        left = iter(numbers)
        async for found in bar.run(place, numbers, size):
            rounds.append(found | {"number": next(left)} if "fault" in found and bar.per_round else found)
            keep()

    async with asyncio.TaskGroup() as group:
        at_once = min(bar.clusters, CLUSTERS_MAX) if size > bar.sample else 1
        for index, numbers in enumerate(shares(bar.left(rounds, size), at_once)):
            group.create_task(run_cluster(directory / str(index), numbers))
    report = judged(bar, rounds, size=size, disturbance=watch.disturbance())
    if report["met"]:
        shutil.rmtree(directory)
    else:
        print(f"logs of the processes: {directory}", file=sys.stderr)
    return report | {
        "commit": describe_commit()["commit"],
        "seconds": round(time.time() - begun_s),
        "load_average_before": load,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "rounds": [{name: value for name, value in one.items() if name != "load"} for one in rounds],
    }


def shown(report: dict[str, Any]) -> str:
    """A line for the bar and one for each figure."""
    if why := report.get("not_run"):
        return f"bar {report['bar']} not run: {why}"
    word = "met" if report["met"] else "not measurable" if report["not_measurable"] else "MISSED"
    faults, requests = report["faults"], report["requests"]
    head = f"bar {report['bar']} {word}: {report['title']}; {faults['proven']} of {faults['injected']} faults proven, "
    head += f"{requests['ok']} of {requests['asked']} answered, {requests['refused']} refused, {requests['other']}"
    figures = (
        f"  {'ok  ' if one['met'] else 'MISS'} {one['name']}: {one['measured']} ({one['asked']})"
        for one in report["figures"]
    )
    return "\n".join([head, *figures])


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    fresh.replace(path)


if __name__ == "__main__":
    sys.exit(main())

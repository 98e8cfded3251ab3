"""Run episodes of the simulated cluster until so many events have happened; stop at the first broken rule.

    python -m tests.simulation --events 10000000 --seed 1 --jobs 2 --out bench/results/2026-11-24-simulation.json
    python -m tests.simulation --episode 4711        # one of them again, with its shortest trace

A run with `--out` that was interrupted goes on where the file ends. Exit status 1: a rule is broken; the shortest
trace that breaks it is printed.
"""

import argparse
import gc
import json
import math
import multiprocessing
import sys
import time
from collections import Counter, deque
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from bench.machine import describe_commit, describe_machine
from tests.simulation.cluster.episode import Episode, Result
from tests.simulation.cluster.scenario import Plan, Scenario
from tests.simulation.cluster.shrink import shrink

# Calm ones, usual ones, and storms: by the remainder of an episode's seed.
PLANS = (
    Plan(faults_per_s=0.02),
    Plan(),
    Plan(faults_per_s=0.5),
    Plan(requests_per_s=8.0, faults_per_s=0.3),
    Plan(gateways=1, nodes=((24.0, 64.0),), faults_per_s=0.2),
    Plan(models=(9.0, 14.0, 20.0), faults_per_s=0.2),
)
WRITTEN_EVERY = 10  # episodes


def plan_of(seed: int) -> Plan:
    """Return the plan of an episode."""
    return PLANS[seed % len(PLANS)]


@dataclass(kw_only=True)
class Totals:
    """Sums over all episodes of a run, also of an interrupted one before it."""

    commit: str  # when the run began
    has_changes: bool
    machine: dict[str, Any] = field(default_factory=describe_machine)
    seed: int  # of the first episode; the others follow
    seconds: float | None  # virtual time of an episode's steps, if not that of its plan
    episodes: int = 0
    events: int = 0
    violations: int = 0
    resumes: int = 0
    cpu_s: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)

    def add(self, result: Result, cpu_s: float) -> None:
        """Count an episode."""
        self.episodes += 1
        self.events += result.events
        self.violations += bool(result.violation)
        self.resumes += result.resumes
        self.cpu_s = round(self.cpu_s + cpu_s, 2)
        self.outcomes += result.outcomes
        self.faults += result.happened

    def write(self, path: Path) -> None:
        """Write a result file, from which a later run goes on."""
        path.write_text(json.dumps(vars(self), indent=1) + "\n", encoding="utf-8")

    def go_on_from(self, path: Path) -> None:
        """Take over the sums of an interrupted run of the same commit and seed."""
        found = json.loads(path.read_text(encoding="utf-8"))
        if all(found[name] == getattr(self, name) for name in ("commit", "seed", "seconds")):
            for name in ("episodes", "events", "violations", "resumes", "cpu_s"):
                setattr(self, name, found[name])
            self.outcomes, self.faults = Counter(found["outcomes"]), Counter(found["faults"])


def scenario_of(seed: int, seconds: float | None) -> Scenario:
    """Draw an episode."""
    plan = plan_of(seed)
    return Scenario.drawn(seed, plan if seconds is None else replace(plan, seconds=seconds))


def play(seed: int, seconds: float | None) -> tuple[int, Result, float]:
    """Play an episode; return its seed, its result, and the processor time that it took."""
    begun_s = time.process_time()
    result = Episode(scenario_of(seed, seconds)).run()
    return seed, result, time.process_time() - begun_s


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000, help="messages, decode steps and decisions in all")
    parser.add_argument("--seed", type=int, default=1, help="of the first episode; the others follow")
    parser.add_argument("--episode", type=int, help="run this one alone")
    parser.add_argument("--minutes", type=float, default=math.inf, help="most minutes of this machine's time")
    parser.add_argument("--seconds", type=float, help="virtual time of an episode's steps")
    parser.add_argument("--jobs", type=int, default=1, help="episodes at once")
    parser.add_argument("--out", type=Path, help="result file")
    arguments = parser.parse_args()
    seconds = arguments.seconds
    if arguments.episode is not None:
        arguments.seed, arguments.events = arguments.episode, 1
    commit = describe_commit()
    totals = Totals(
        commit=str(commit["commit"]), has_changes=bool(commit["changed_files"]), seed=arguments.seed, seconds=seconds
    )
    if arguments.out is not None and arguments.out.exists():
        totals.go_on_from(arguments.out)
    before, started_s = totals.events, time.monotonic()
    gc.freeze()  # modules are not looked through again and again
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("fork")) as pool:
        seeds = count(totals.seed + totals.episodes)
        playing = deque(pool.submit(play, next(seeds), seconds) for _ in range(arguments.jobs))
        while totals.events < arguments.events and time.monotonic() < started_s + 60 * arguments.minutes:
            seed, result, cpu_s = playing.popleft().result()
            totals.add(result, cpu_s)
            if arguments.out is not None and totals.episodes % WRITTEN_EVERY == 0:
                totals.write(arguments.out)
            if result.violation:
                print(f"episode {seed}: {result.violation}\nlooking for the shortest trace", flush=True)
                print(shrink(scenario_of(seed, seconds), result.violation).text())
                break
            if arguments.episode is None:
                playing.append(pool.submit(play, next(seeds), seconds))
        pool.shutdown(wait=False, cancel_futures=True)
    if arguments.out is not None:
        totals.write(arguments.out)
    took_s = time.monotonic() - started_s
    rate = (totals.events - before) / took_s
    print(f"{totals.events} events in {totals.episodes} episodes, {took_s:.0f} s, {rate:.0f} events/s")
    answers, faults = dict(totals.outcomes.most_common()), dict(totals.faults.most_common())
    print(f"answers {answers}, resumed {totals.resumes} times; faults {faults}; {totals.cpu_s:.0f} s of processors")
    return 1 if totals.violations else 0


if __name__ == "__main__":
    sys.exit(main())

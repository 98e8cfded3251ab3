"""Run episodes of the simulated cluster until so many events have happened; stop at the first broken rule.

    python -m tests.simulation --events 10000000 --seed 1
    python -m tests.simulation --episode 4711        # one of them again, with its shortest trace

Exit status 1: a rule is broken; the shortest trace that breaks it is printed.
"""

import argparse
import math
import sys
import time
from collections import Counter
from dataclasses import replace

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


def plan_of(seed: int) -> Plan:
    """Return the plan of an episode."""
    return PLANS[seed % len(PLANS)]


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000, help="messages, decode steps and decisions in all")
    parser.add_argument("--seed", type=int, default=1, help="of the first episode; the others follow")
    parser.add_argument("--episode", type=int, help="run this one alone")
    parser.add_argument("--minutes", type=float, default=math.inf, help="most minutes of this machine's time")
    parser.add_argument("--seconds", type=float, help="virtual time of an episode's steps")
    arguments = parser.parse_args()
    first = arguments.seed if arguments.episode is None else arguments.episode
    started_s, events, seed = time.monotonic(), 0, first
    outcomes: Counter[str] = Counter()
    happened: Counter[str] = Counter()
    resumes = 0
    while events < arguments.events and time.monotonic() < started_s + 60 * arguments.minutes:
        plan = plan_of(seed) if arguments.seconds is None else replace(plan_of(seed), seconds=arguments.seconds)
        scenario = Scenario.drawn(seed, plan)
        result: Result = Episode(scenario).run()
        events, resumes = events + result.events, resumes + result.resumes
        outcomes += result.outcomes
        happened += result.happened
        if result.violation:
            print(f"episode {seed}: {result.violation}\nlooking for the shortest trace", flush=True)
            print(shrink(scenario, result.violation).text())
            return 1
        if arguments.episode is not None:
            break
        seed += 1
    took_s = time.monotonic() - started_s
    print(f"{events} events in {seed - first or 1} episodes, {took_s:.0f} s, {events / took_s:.0f} events/s")
    print(f"answers {dict(outcomes.most_common())}, resumed {resumes} times; faults {dict(happened.most_common())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

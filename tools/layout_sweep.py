"""Layouts that the planner finds against the best there are, over seeded clusters: `python -m tools.layout_sweep`.

Prints every cluster whose layout is of another shape or size than the best, or more than a tenth slower than the
fastest of that shape and size, and how many there were. A thousand clusters take half a minute.
"""

import argparse
import sys

from scheduler.core.planning.candidates import Placement
from tests.unit.scheduler.small_clusters import case

SLOWER_MAX = 1.1


def main(arguments: list[str] | None = None) -> int:
    """Look at seeds one after the other; 1 if any layout was not the best."""
    parser = argparse.ArgumentParser(prog="python -m tools.layout_sweep", description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1000, help="so many seeds")
    parser.add_argument("--devices", type=int, default=5, help="at most so many devices")
    parser.add_argument("--speeds", action="store_true", help="devices are differently fast")
    parser.add_argument("--kinds", action="store_true", help="graphs are larger on some devices")
    options = parser.parse_args(arguments)
    worse, slower, rounds = 0, 0, list[int]()
    for seed in range(options.first, options.first + options.count):
        one = case(seed, devices_max=options.devices, speeds=options.speeds, kinds=options.kinds)
        best, (outcome, _) = one.best(), one.decide()
        assert isinstance(outcome, Placement), seed
        assert one.fits(outcome.layout), seed
        rounds.append(outcome.rounds)
        got, seconds = one.rank(outcome.layout), one.token_s(outcome.layout)
        if got != best.rank:
            worse += 1
            print(f"seed {seed}: {got} instead of {best.rank} after {outcome.rounds} rounds")
        elif options.speeds and seconds > best.token_s * SLOWER_MAX:
            slower += 1
            print(f"seed {seed}: {seconds / best.token_s:.2f} times as slow after {outcome.rounds} rounds")
    mean = sum(rounds) / len(rounds)
    print(f"of {len(rounds)}: {worse} worse, {slower} slower; rounds: {mean:.1f} on average, {max(rounds)} at most")
    return int(bool(worse or slower))


if __name__ == "__main__":
    sys.exit(main())

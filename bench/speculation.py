"""Our engine with and without drafted tokens, alternating in one process: verdict lines for the bars S4 and S5.

    python -m bench.speculation MODEL [--rounds 5] [--tokens 200]

MODEL is a file, or a name of bench/engine/cases.py. An oracle drafts the known answer and is right at a given share;
without an oracle the engine's own drafters guess. S4 is of the model `1b`, S5 of trained weights (`gemma3-270m`).

Random weights decide many tokens by near ties, which calls of several inputs may decide otherwise: from there on an
oracle would always be wrong. So a bias makes its answers one token again and again; the engine computes as much.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.engine.models import ModelMissing, cache_folder, model_file
from bench.machine import load_average
from runner.core.sequence.endings import EndReason
from tests.integration.runner.harness import GREEDY, Harness, running
from tests.integration.runner.oracle import Oracles

PROMPT = "The weather is cold in the morning, and the report says it in the same words again: "
ALWAYS = replace(GREEDY, logit_bias={400: 100.0})
COPY = (
    "Text: The harbour master wrote down every ship that came in before noon, its flag, its cargo and the name of its "
    "captain, and read the list aloud to the clerks at the long table.\nThe same text once more: "
)


@dataclass(frozen=True, slots=True)
class Case:
    """A drafter and the smallest ratio, with drafts over without, that its bar asks for."""

    bar: str
    name: str
    streams: int
    bound: float
    share: float | None = None  # of an oracle's drafts that are right; None: the engine's own drafters
    prompt: str = PROMPT

    def verdict(self, ratio: float) -> str:
        """Return a line for people and scripts."""
        word = "reached" if ratio >= self.bound else "MISSED"
        streams = "1 stream" if self.streams == 1 else f"{self.streams} streams"
        return f"{self.bar} {word}: {self.name}, {streams}: {ratio:.2f} of the tokens/s without (bar {self.bound})"


CASES = (
    Case("S4", "oracle 90%", 1, 2.0, 0.9),
    *(Case("S4", f"oracle {share:.0%}", 1, 0.98, share) for share in (0.3, 0.1, 0.0)),
    *(Case("S4", f"oracle {share:.0%}", 16, 0.99, share) for share in (0.9, 0.0)),
    Case("S4", "own drafters", 1, 0.98),
    Case("S5", "text that copies its prompt", 1, 1.8, prompt=COPY),
)


async def tokens_per_s(harness: Harness, case: Case, *, tokens: int, speculates: bool) -> tuple[float, list[int]]:
    """Run streams of one answer length; return tokens/s of all together, and the first answer."""
    began_s = time.perf_counter()
    opened = [
        harness.open(
            f"{case.prompt}{number if case.streams > 1 else ''}",
            max_tokens=tokens,
            sampling=GREEDY if case.share is None else ALWAYS,
            ignore_eos=True,
            speculates=speculates,
            cache_prompt=False,
        )
        for number in range(case.streams)
    ]
    answers = [await harness.read(stream) for stream in opened]
    assert all(answer.end.ending.reason is EndReason.LENGTH for answer in answers)
    return case.streams * tokens / (time.perf_counter() - began_s), answers[0].ids


async def measure(model: Path, cases: Sequence[Case], *, rounds: int, tokens_of_one: int, threads: int) -> None:
    """Print the verdict on the median ratio of each case, and the ratios. Of several streams each has a quarter."""
    oracles = Oracles()
    async with running(model, slots=16, context=1024, threads=threads, drafters=oracles, verify=False) as harness:
        for case in cases:
            oracles.answer = ()
            tokens = max(1, tokens_of_one // (1 if case.streams == 1 else 4))
            _, truth = await tokens_per_s(harness, case, tokens=tokens, speculates=True)  # to warm up, too
            if case.share is not None:
                oracles.answer, oracles.share = truth, case.share
            ratios = []
            before_load = load_average()
            for _ in range(rounds):
                without, _ = await tokens_per_s(harness, case, tokens=tokens, speculates=False)
                drafted, answer = await tokens_per_s(harness, case, tokens=tokens, speculates=True)
                assert case.share is None or answer == truth, "the oracle did not know the answer"
                ratios.append(drafted / without)
            figures = ", ".join(f"{ratio:.2f}" for ratio in ratios)
            print(f"{case.verdict(statistics.median(ratios))}  [{figures}] load average {before_load}", flush=True)


def main() -> int:
    """Parse the command line and measure; a model that is not installed is skipped with its reason."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument("--streams", type=int, help="cases of as many streams")
    options = parser.parse_args()
    path = Path(options.model)
    try:
        model = path if path.is_file() else model_file(options.model, cache_folder())
    except ModelMissing as missing:
        print(f"skipped: {missing}")
        return 0
    cases = [case for case in CASES if options.only in case.name and options.streams in (None, case.streams)]
    asyncio.run(measure(model, cases, rounds=options.rounds, tokens_of_one=options.tokens, threads=options.threads))
    return 0


if __name__ == "__main__":
    sys.exit(main())

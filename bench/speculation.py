"""Our engine with and without drafted tokens, alternating in one process: `python -m bench.speculation MODEL.gguf`.

An oracle drafts the known answer and is right at a given share; without an oracle the engine's own drafters guess.
"""

import argparse
import asyncio
import statistics
import time
from pathlib import Path

from runner.core.sequence.endings import EndReason
from tests.integration.runner.harness import Harness, running
from tests.integration.runner.oracle import Oracles

PROMPT = "The weather is cold in the morning, and the report says it in the same words again: "
SHARES = (0.9, 0.3, 0.1, 0.0)


async def tokens_per_s(harness: Harness, *, streams: int, tokens: int, speculates: bool) -> tuple[float, list[int]]:
    """Run streams of one answer length; return tokens/s of all together, and the first answer."""
    began_s = time.perf_counter()
    opened = [
        harness.open(
            f"{PROMPT}{number}", max_tokens=tokens, ignore_eos=True, speculates=speculates, cache_prompt=streams == 1
        )
        for number in range(streams)
    ]
    answers = [await harness.read(stream) for stream in opened]
    assert all(answer.end.ending.reason is EndReason.LENGTH for answer in answers)
    return streams * tokens / (time.perf_counter() - began_s), answers[0].ids


async def measure(model: Path, *, rounds: int, tokens: int, threads: int) -> None:
    """Print the median ratio, with over without, of each case."""
    oracles = Oracles()
    async with running(model, slots=16, context=1024, threads=threads, drafters=oracles) as harness:
        _, truth = await tokens_per_s(harness, streams=1, tokens=tokens, speculates=False)
        for share, streams in [*((share, 1) for share in SHARES), (0.9, 16), (None, 1)]:
            oracles.answer, oracles.share = (truth, share) if share is not None else ((), 0.0)
            ratios = []
            for _ in range(rounds):
                without, _ = await tokens_per_s(harness, streams=streams, tokens=tokens, speculates=False)
                drafted, _ = await tokens_per_s(harness, streams=streams, tokens=tokens, speculates=True)
                ratios.append(drafted / without)
            name = "own drafters" if share is None else f"oracle {share:.0%}"
            print(f"{name:14} {streams:2} streams: {statistics.median(ratios):.2f}x  {[round(r, 2) for r in ratios]}")


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    asyncio.run(measure(options.model, rounds=options.rounds, tokens=options.tokens, threads=options.threads))


if __name__ == "__main__":
    main()

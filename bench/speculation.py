"""Our engine with and without drafted tokens, and beside llama-server: verdict lines for the bars S4 and S5.

    python -m bench.speculation MODEL [--rounds 5] [--tokens 200] [--only NAME]

MODEL is a file, or a name of bench/engine/cases.py. An oracle drafts the known answer and is right at a given share;
without an oracle the engine's own drafters guess. S4 is of the model `1b`, S5 of trained weights (`gemma3-270m`),
where the n-gram guesses of llama-server, each of its settings below, answer the same prompt.

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
from bench.engine.servers import LlamaServer, Sizes, find_llama_server, running_llama_server
from bench.engine.streams import Ask
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
SLOTS, CONTEXT_TOKENS = 16, 1024
# Tokens that llama-server looks up, and tokens that it then drafts; the second is its own default.
PEER_SETTINGS = ((6, 12), (12, 48))
PEER_BOUND = 1.3


@dataclass(frozen=True, slots=True)
class Case:
    """A drafter and the smallest ratio, with drafts over without, that its bar asks for."""

    bar: str
    name: str
    streams: int
    bound: float
    share: float | None = None  # of an oracle's drafts that are right; None: the engine's own drafters
    prompt: str = PROMPT
    # The speed of a machine changes within seconds: short rounds, many of them.
    rounds: int = 14
    tokens: int = 64  # of one stream; of several each has a quarter

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
    Case("S5", "text that copies its prompt", 1, 1.8, prompt=COPY, rounds=5, tokens=200),
)


async def tokens_per_s(
    harness: Harness, case: Case, *, speculates: bool, cached: bool = False
) -> tuple[float, list[int]]:
    """Run the streams of a case, computed or `cached` prompts included.

    Returns: tokens/s of all together, and the first answer.
    """
    tokens = max(1, case.tokens // (1 if case.streams == 1 else 4))
    began_s = time.perf_counter()
    opened = [
        harness.open(
            f"{case.prompt}{number if case.streams > 1 else ''}",
            max_tokens=tokens,
            sampling=GREEDY if case.share is None else ALWAYS,
            ignore_eos=True,
            speculates=speculates,
            cache_prompt=cached,
        )
        for number in range(case.streams)
    ]
    answers = [await harness.read(stream) for stream in opened]
    assert all(answer.end.ending.reason is EndReason.LENGTH for answer in answers)
    return case.streams * tokens / (time.perf_counter() - began_s), answers[0].ids


async def measure(model: Path, cases: Sequence[Case], *, threads: int) -> None:
    """Print the verdict on the median ratio of each case, and the ratios."""
    oracles = Oracles()
    async with running(
        model, slots=SLOTS, context=CONTEXT_TOKENS, threads=threads, drafters=oracles, verify=False
    ) as harness:
        for case in cases:
            oracles.answer = ()
            _, truth = await tokens_per_s(harness, case, speculates=True)  # to warm up, too
            if case.share is not None:
                oracles.answer, oracles.share = truth, case.share
            ratios = []
            before_load = load_average()
            for number in range(case.rounds):
                speeds = {}
                for speculates in (False, True) if number % 2 else (True, False):
                    speeds[speculates], answer = await tokens_per_s(harness, case, speculates=speculates)
                    assert case.share is None or answer == truth, "the oracle did not know the answer"
                ratios.append(speeds[True] / speeds[False])
            figures = ", ".join(f"{ratio:.2f}" for ratio in ratios)
            print(f"{case.verdict(statistics.median(ratios))}  [{figures}] load average {before_load}", flush=True)


async def compare(model: Path, program: Path, case: Case, *, threads: int) -> None:
    """Print the verdict on the copied text beside each setting of llama-server."""
    sizes = Sizes(slots=SLOTS, context_tokens=CONTEXT_TOKENS)
    for looked_up, drafted in PEER_SETTINGS:
        sizes_of_grams = ("--spec-ngram-simple-size-n", str(looked_up), "--spec-ngram-simple-size-m", str(drafted))
        options = ("--spec-type", "ngram-simple", *sizes_of_grams)
        with running_llama_server(program, model, sizes, threads=threads, options=options) as peer:
            async with running(model, slots=SLOTS, context=CONTEXT_TOKENS, threads=threads, verify=False) as harness:
                vocabulary = harness.engine.vocabulary
                words = vocabulary.tokenize(case.prompt.encode(), parse_special=True)
                prompt = (*([vocabulary.bos] if vocabulary.adds_bos else []), *words)
                await peer_tokens_per_s(peer, prompt, case.tokens)
                await tokens_per_s(harness, case, speculates=True, cached=True)
                ratios = []
                before_load = load_average()
                for _ in range(case.rounds):
                    theirs = await peer_tokens_per_s(peer, prompt, case.tokens)
                    ours, _ = await tokens_per_s(harness, case, speculates=True, cached=True)
                    ratios.append(ours / theirs)
        ratio = statistics.median(ratios)
        word = "reached" if ratio >= PEER_BOUND else "MISSED"
        figures = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(
            f"S5 {word}: {case.name}, {ratio:.2f} of llama-server's tokens/s with n-grams of {looked_up} and {drafted} "
            f"drafted tokens (bar {PEER_BOUND})  [{figures}] load average {before_load}",
            flush=True,
        )


async def peer_tokens_per_s(peer: LlamaServer, prompt: tuple[int, ...], tokens: int) -> float:
    """Return the tokens/s of one answer; its prompt is cached, as ours is."""
    began_s = time.perf_counter()
    (stream,) = await peer.generate([Ask(prompt=prompt, tokens=tokens)])
    assert stream.generated_tokens >= tokens
    return stream.generated_tokens / (time.perf_counter() - began_s)


def main() -> int:
    """Parse the command line and measure; a model that is not installed is skipped with its reason."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, help="of each case; default: its own")
    parser.add_argument("--tokens", type=int, help="of one stream; default: those of the case")
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
    cases = [
        replace(case, rounds=options.rounds or case.rounds, tokens=options.tokens or case.tokens)
        for case in CASES
        if options.only in case.name and options.streams in (None, case.streams)
    ]
    asyncio.run(measure(model, cases, threads=options.threads))
    program = find_llama_server()
    if program is not None and cases and cases[-1].bar == "S5":
        asyncio.run(compare(model, program, cases[-1], threads=options.threads))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A model over two nodes with and without its draft model, alternating in one process: the verdict line of the bar S7.

    python -m bench.split_speculation [--model 1b] [--round-trip-ms 10] [--rounds 5] [--tokens 100]

Half of the layers are on a device behind a link of the round trip, half on one beside the runner, as for a lending node
and the head. The draft model has about a tenth of the target's weights and is on the head. Both have random weights, so
its guesses take their time and are then replaced by an oracle's, of which a share is right.
"""

import argparse
import asyncio
import statistics
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from bench.engine.models import cache_folder, model_file
from bench.machine import load_average
from bench.slow_link import slow_link
from bench.speculation import Case, tokens_per_s
from common.spec.layout import DeviceLayers, Layout
from runner.core.model.model_files import ModelFiles
from runner.core.speculation.drafters import NgramDrafter
from runner.engine.batched.engine import BatchedEngine
from runner.engine.batched.model_drafter import ModelDrafter
from tests.integration.runner.harness import DEADLINE_S, Harness
from tests.limited_device import limited_device
from tools.model_zoo import build, shape
from tools.model_zoo.recipe import Recipe

LOAD_DEADLINE_S = 300.0  # half of the weights cross the link
CASE = Case("S7", "draft model, 80% right, two nodes", 1, 2.0, 0.8, rounds=5, tokens=100)


class GuidedDrafter:
    """Takes the place of `ModelDrafter.draft`: guesses as it does, and says what an oracle knows."""

    def __init__(self, share: float) -> None:
        self.answer: list[int] = []
        self.prompt_tokens = 0
        self._wrong_every = round(1 / (1 - share))
        self._draft = ModelDrafter.draft

    def __call__(self, drafter: ModelDrafter, limit: int) -> list[int]:
        """Return as many tokens as the draft model guessed."""
        count = len(self._draft(drafter, limit))
        at = len(drafter.said) - self.prompt_tokens
        guesses = enumerate(self.answer[at : at + count], start=at)
        return [token if place % self._wrong_every else token ^ 1 for place, token in guesses]


def draft_recipe(target: Recipe) -> Recipe:
    """Return a recipe of about a tenth of the weights of `1b`, with the vocabulary of the target."""
    return replace(shape("57m"), name=f"{target.name}-draft", vocabulary_tokens=target.vocabulary_tokens, tied=True)


async def measure(target: Path, draft: Path, layout: Layout, case: Case) -> None:
    """Print the verdict on the median ratio, and the ratios."""
    guided = GuidedDrafter(case.share or 0.0)

    def draft_guided(self: ModelDrafter, limit: int) -> list[int]:
        return guided(self, limit)

    ModelDrafter.draft = draft_guided  # type: ignore[method-assign]
    # The answer repeats a token, which n-grams would guess in place of the draft model.
    NgramDrafter.draft = lambda _self, _limit: []  # type: ignore[assignment, method-assign]  # see above
    harness = Harness(BatchedEngine(ModelFiles(model=target, draft=(draft,)), layout), overlap=True)
    await harness.load(deadline_s=LOAD_DEADLINE_S)
    try:
        assert harness.model is not None
        assert harness.model.speculation is not None
        assert not harness.model.speculation.draft_off_reason, harness.model.speculation.draft_off_reason
        vocabulary = harness.engine.vocabulary
        prompt = vocabulary.tokenize(case.prompt.encode(), parse_special=True)
        guided.prompt_tokens = len(prompt) + vocabulary.adds_bos
        _, guided.answer = await tokens_per_s(harness, case, speculates=False)
        before_load, ratios, speeds = load_average(), [], []
        for _ in range(case.rounds):
            without, _ = await tokens_per_s(harness, case, speculates=False)
            drafted, _ = await tokens_per_s(harness, case, speculates=True)
            ratios.append(drafted / without)
            speeds.append(f"{without:.1f}->{drafted:.1f}")
        drafted_tokens = sum(report.drafted_by_model for report in harness.reports)
        right_tokens = sum(report.accepted_by_model for report in harness.reports)
        assert drafted_tokens, "the draft model has guessed"
        verdict = case.verdict(statistics.median(ratios))
        right = f"{right_tokens} of {drafted_tokens} right, {harness.model.speculation.draft_ms:.1f} ms a guess"
        print(f"{verdict}  [{', '.join(speeds)} tokens/s; {right}] load average {before_load}")
    finally:
        harness.engine.stop()
        await asyncio.to_thread(harness.engine.join, DEADLINE_S)


def main() -> None:
    """Parse the command line, lend the devices, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="1b")
    parser.add_argument("--round-trip-ms", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=CASE.rounds)
    parser.add_argument("--tokens", type=int, default=CASE.tokens)
    options = parser.parse_args()
    recipe = shape(options.model)
    target, draft = model_file(options.model, cache_folder()), build(draft_recipe(recipe), cache_folder())
    layers = recipe.layers + 1
    with ExitStack() as stack:
        far, near = (stack.enter_context(limited_device(mib=8 * 1024)) for _ in range(2))
        link = stack.enter_context(slow_link(far.address, round_trip_ms=options.round_trip_ms))
        layout = Layout(
            devices=(
                DeviceLayers("far", layers // 2, node_id="lender", rpc_address=link),
                DeviceLayers("near", layers - layers // 2, rpc_address=near.address),
            ),
            slots=2,
            context_tokens=1024,
        )
        case = replace(CASE, rounds=options.rounds, tokens=options.tokens)
        asyncio.run(measure(target, draft, layout, case))


if __name__ == "__main__":
    main()

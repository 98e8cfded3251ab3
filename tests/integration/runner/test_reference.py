"""Our batches against llama-cpp-python's own `Llama` class, architecture by architecture."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from llama_cpp import Llama
from numpy.typing import NDArray

from common.spec.layout import FlashAttention, Layout
from runner.core.model.model_files import ModelFiles
from runner.engine.batched.engine import BatchedEngine
from runner.engine.batched.loop import BatchedOptions
from runner.engine.bindings.library import engine_log
from tests.engines.reference import ReferenceEngine
from tests.integration.runner.conftest import Zoo
from tests.integration.runner.contract import driven
from tests.integration.runner.harness import assert_equals_cold, running
from tests.integration.runner.pooled_harness import EMBEDDERS
from tools.model_zoo import ZOO

PROMPT = "The weather is cold in the morning."
CONTEXT_TOKENS = 128
BATCH_TOKENS = 32
ANSWER_TOKENS = 48
WINDOW_TOKENS = 64  # of the zoo's windowed model


@dataclass(frozen=True)
class Agreement:
    """Largest accepted difference of logits, as a share of the largest magnitude.

    Attributes:
        tolerance: other batch shapes take other kernels, and these round in other ways.
        greedy_tolerance: the same for the rows of a greedy answer, whose batches are of one token.
        batch: tokens of one call of ours.
    """

    tolerance: float = 0.005
    greedy_tolerance: float = 0.005
    batch: int = 64


# Every model of the zoo that generates. What an entry says besides its name is why it needs more room.
AGREEMENTS = {
    "dense": Agreement(),
    "dense_wide_head": Agreement(),
    # Weights in Q8_0 are rearranged for batches; a batch of one and a batch of many then round differently.
    "tied": Agreement(tolerance=0.08),
    # Where rounding decides between experts of equal weight, chunks of another size take another one.
    "moe": Agreement(batch=512),
    "swa": Agreement(),
    # On CPUs with AMX the class computes weights with kernels that batches of several sequences cannot use.
    "recurrent": Agreement(greedy_tolerance=0.01),
    "hybrid": Agreement(greedy_tolerance=0.01),
    "hybrid_rollback": Agreement(greedy_tolerance=0.01),
    "rope_freqs": Agreement(),
    "rope_factors": Agreement(),
    "mrope": Agreement(),
    "vision": Agreement(),
    "vision_swa": Agreement(),
}


@pytest.mark.behaviour("B-153")
def test_every_model_of_the_zoo_is_compared_with_the_class() -> None:
    pooled = {name for name, recipe in ZOO.items() if recipe.pooling is not None}
    models = {name for name, recipe in ZOO.items() if recipe.tokenizer is not None}
    assert set(AGREEMENTS) == models - pooled
    assert pooled == {*EMBEDDERS, "reranker"}


def reference_logits(path: Path, ids: list[int]) -> NDArray[np.float32]:
    """The last row of logits that the high-level class computes, float32[vocabulary]."""
    model = Llama(
        str(path),
        n_ctx=512,
        n_batch=512,
        n_threads=1,
        n_threads_batch=1,
        n_gpu_layers=0,
        logits_all=True,
        flash_attn=True,
        verbose=False,
    )
    try:
        engine_log.install()  # the class sets the log callback of the process
        model.eval(ids)
        return np.array(model.scores[len(ids) - 1], np.float32)
    finally:
        model.close()


@pytest.mark.behaviour("B-22", "B-153")
@pytest.mark.parametrize("name", AGREEMENTS)
async def test_logits_of_prompts_that_share_batches_are_those_of_the_class(zoo: Zoo, name: str) -> None:
    rng = np.random.default_rng(7)
    agreement = AGREEMENTS[name]
    async with running(zoo(name), slots=4, batch=agreement.batch) as engine:
        size = engine.engine.vocabulary.size
        prompts = [rng.integers(300, min(size, 1000), size=length).tolist() for length in (5, 40, 150)]
        streams = [engine.open(prompt, max_tokens=1, top_logprobs=0) for prompt in prompts]
        for stream in streams:
            await engine.read(stream)
        rows = [engine.rows[stream.id][0] for stream in streams]
    for prompt, row in zip(prompts, rows, strict=True):
        assert_equals_cold(row, reference_logits(zoo(name), prompt), tolerance=agreement.tolerance)


@pytest.mark.behaviour("B-22")
@pytest.mark.parametrize("name", [name for name in AGREEMENTS if name.startswith(("recurrent", "hybrid"))])
async def test_quantized_layers_that_recur_compute_each_sequence_of_a_batch_as_alone(quantized: Zoo, name: str) -> None:
    rng = np.random.default_rng(7)
    prompts = [rng.integers(300, 1000, size=length).tolist() for length in (5, 40, 150)]
    async with running(quantized(name), slots=4, batch=256) as engine:
        alone = [await engine.logits(prompt, cache_prompt=False) for prompt in prompts]
        together = await asyncio.gather(*(engine.logits(prompt, cache_prompt=False) for prompt in prompts))
    for row, expected in zip(together, alone, strict=True):
        assert_equals_cold(row, expected)


def layout() -> Layout:
    # Kernels that fuse attention round in another way, and the class's engine has none.
    return Layout(
        slots=2,
        context_tokens=CONTEXT_TOKENS,
        batch_tokens=BATCH_TOKENS,
        threads=1,
        flash_attention=FlashAttention.OFF,
    )


@pytest.mark.behaviour("B-22", "B-153")
@pytest.mark.parametrize("name", AGREEMENTS)
def test_a_greedy_answer_is_that_of_the_class(name: str, zoo: Zoo) -> None:
    files, tolerance = ModelFiles(model=zoo(name)), AGREEMENTS[name].greedy_tolerance
    with driven(ReferenceEngine(files, layout())) as oracle:
        # Longer than a batch, and with the answer longer than the sliding window.
        prompt = oracle.tokens(4 * PROMPT)
        expected = oracle.ask(prompt, max_tokens=ANSWER_TOKENS, top_logprobs=0)
    assert len(prompt) > BATCH_TOKENS
    assert len(prompt) + ANSWER_TOKENS > WINDOW_TOKENS
    with driven(BatchedEngine(files, layout(), BatchedOptions(verify=True))) as driver:
        actual = driver.ask(prompt, max_tokens=ANSWER_TOKENS, top_logprobs=0)
        compared = 0
        for mine, theirs in zip(actual.rows, expected.rows, strict=True):
            assert_equals_cold(mine, theirs, tolerance=tolerance)
            if actual.ids[compared] != expected.ids[compared]:
                break  # two tokens that rounding makes equal; what follows differs by right
            compared += 1
        # After such a place the oracle's own tokens are forced, so that every one of its rows is compared.
        for position in range(compared, ANSWER_TOKENS):
            forced = (*prompt, *expected.ids[:position])
            row = driver.ask(forced, max_tokens=1, top_logprobs=0, cache_prompt=False).rows[0]
            assert_equals_cold(row, expected.rows[position], tolerance=tolerance)
            assert row[expected.ids[position]] >= row.max() - tolerance * np.abs(row).max()

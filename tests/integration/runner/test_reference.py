"""Our batches against llama-cpp-python's own `Llama` class, architecture by architecture."""

from pathlib import Path

import numpy as np
import pytest
from llama_cpp import Llama
from numpy.typing import NDArray

from runner.engine.library import engine_log
from tests.integration.runner.conftest import Zoo
from tests.integration.runner.harness import assert_equals_cold, running

# Weights in Q8_0 are repacked for batches; a batch of one and a batch of many then round differently.
TOLERANCE = {"tied": 0.08, "57m": 0.08}
ARCHITECTURES = [
    "dense",
    "dense_wide_head",
    "tied",
    "moe",
    "swa",
    "recurrent",
    "hybrid",
    "hybrid_rollback",
    "rope_freqs",
    "rope_factors",
    "mrope",
    "vision",
]


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
@pytest.mark.parametrize("name", ARCHITECTURES)
async def test_logits_are_those_of_the_reference(zoo: Zoo, name: str) -> None:
    rng = np.random.default_rng(7)
    # Where rounding decides between experts of equal weight, chunks of another size take another one.
    async with running(zoo(name), slots=4, batch=512 if name == "moe" else 64) as engine:
        size = engine.engine.vocabulary.size
        prompts = [rng.integers(300, min(size, 1000), size=length).tolist() for length in (5, 40, 150)]
        streams = [engine.open(prompt, max_tokens=1, top_logprobs=0) for prompt in prompts]
        for stream in streams:
            await engine.read(stream)
        rows = [engine.rows[stream.id][0] for stream in streams]
    for prompt, row in zip(prompts, rows, strict=True):
        assert_equals_cold(row, reference_logits(zoo(name), prompt), tolerance=TOLERANCE.get(name, 0.01))

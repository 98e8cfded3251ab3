"""Images through the real engine, against what mtmd's own helper makes of them."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import llama_cpp.mtmd_cpp as mtmd
import numpy as np
import pytest
from numpy.typing import NDArray

from runner.core.media import Image
from tests.integration.model_zoo_engine import Eyes, loaded
from tests.integration.runner.harness import Harness, assert_equals_cold, running
from tests.integration.runner.pictures import image_file, picture
from tools.model_zoo import build_pair

PAIRS = ("vision", "vision_swa", "mrope")
BEFORE, AFTER = "Look at this: ", " What is it?"
GENERATED = 6


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where models and their projectors are."""
    return tmp_path_factory.mktemp("pairs")


@asynccontextmanager
async def seeing(pairs: Path, name: str, **options: Any) -> AsyncIterator[Harness]:
    """A running engine with its projector; no image may be in use in the end."""
    model, projector = build_pair(name, pairs)
    async with running(model, projector=projector, **{"context": 1024, "slots": 2, **options}) as harness:
        yield harness
        await harness.idle()
        assert harness.engine.shelf.live == 0


def prompt(harness: Harness, *parts: str | Image) -> dict[str, Any]:
    """Arguments of `ask` for text and images in their order, begin token as the model wants it."""
    vocabulary = harness.engine.vocabulary
    inputs: list[int] = [vocabulary.bos] if vocabulary.adds_bos else []
    for part in parts:
        inputs += part.inputs if isinstance(part, Image) else harness.tokens(part)
    return {"prompt": inputs, "images": tuple(part for part in parts if isinstance(part, Image))}


def reference(pairs: Path, name: str, pixels: NDArray[np.uint8]) -> tuple[NDArray[np.float32], list[int]]:
    """Logits behind the prompt and a greedy continuation, by mtmd's helper."""
    model_file, projector_file = build_pair(name, pairs)
    with loaded(model_file) as model:
        eyes = Eyes(model, projector_file)
        marker = mtmd.mtmd_default_marker().decode()
        logits, _ = eyes.logits(eyes.chunks(f"{BEFORE}{marker}{AFTER}", pixels))
        ids = []
        row = logits
        for _ in range(GENERATED):
            ids.append(int(row.argmax()))
            model.decode(ids[-1:])
            row = model.last_logits()
        return logits, ids


def same(one: Sequence[float], other: Sequence[float]) -> bool:
    return np.array_equal(np.asarray(one), np.asarray(other))


@pytest.mark.behaviour("B-21", "B-103")
@pytest.mark.parametrize("name", PAIRS)
async def test_an_answer_about_an_image_equals_that_of_mtmd_s_own_helper(pairs: Path, name: str) -> None:
    pixels = picture(1)
    logits, ids = reference(pairs, name, pixels)
    async with seeing(pairs, name) as harness:
        image = harness.engine.read_image(image_file(pixels))
        asked = prompt(harness, BEFORE, image, AFTER)
        assert_equals_cold(await harness.logits(**asked), logits)
        answer = await harness.ask(**asked, max_tokens=GENERATED, ignore_eos=True, cache_prompt=False)
        assert answer.ids == ids
        other = harness.engine.read_image(image_file(picture(2)))
        difference = np.abs(await harness.logits(**prompt(harness, BEFORE, other, AFTER)) - logits).max()
        assert difference > 0.01 * np.abs(logits).max()

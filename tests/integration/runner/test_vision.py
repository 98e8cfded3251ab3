"""Images through the real engine, against what mtmd's own helper makes of them."""

import asyncio
import gc
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import llama_cpp.mtmd_cpp as mtmd
import numpy as np
import pytest
from numpy.typing import NDArray

from common.errors import InvalidRequest, PromptTooLong, RequestCanceled, UnsupportedCapability
from common.spec.layout import FlashAttention, Layout
from runner.core.model.model_files import ModelFiles
from runner.core.sequence.media import EncodedImage, PreparedImage
from runner.engine.media.media_store import KEPT_IMAGES, MediaStore
from runner.measure import measure
from tests.integration.model_zoo_engine import Vision, loaded
from tests.integration.runner.harness import Harness, assert_equals_cold, refused, running
from tests.integration.runner.pictures import image_file, picture
from tools.model_zoo import build, build_pair
from tools.model_zoo.catalogue import recipe_of

PAIRS = ("vision", "vision_swa", "mrope")
BEFORE, AFTER = "Look at this: ", " What is it?"
GENERATED = 6


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of models and their projectors."""
    return tmp_path_factory.mktemp("pairs")


@asynccontextmanager
async def seeing(pairs: Path, name: str, **options: Any) -> AsyncIterator[Harness]:
    """A running engine with its projector; no image may be in use in the end."""
    model, projector = build_pair(name, pairs)
    async with running(model, projector=projector, **{"context": 1024, "slots": 2, **options}) as harness:
        yield harness
        await harness.idle()
        assert images_of(harness).live == 0


def prompt(harness: Harness, *parts: str | PreparedImage) -> dict[str, Any]:
    """Arguments of `ask` for text and images in their order, begin token as the model wants it."""
    vocabulary = harness.engine.vocabulary
    inputs: list[int] = [vocabulary.bos] if vocabulary.adds_bos else []
    for part in parts:
        inputs += part.inputs if isinstance(part, PreparedImage) else harness.tokens(part)
    return {"prompt": inputs, "images": tuple(part for part in parts if isinstance(part, PreparedImage))}


def reference(pairs: Path, name: str, pixels: NDArray[np.uint8]) -> tuple[NDArray[np.float32], list[int]]:
    """Logits behind the prompt and a greedy continuation, by mtmd's helper."""
    model_file, projector_file = build_pair(name, pairs)
    with loaded(model_file) as model:
        vision = Vision(model, projector_file)
        marker = mtmd.mtmd_default_marker().decode()
        logits, _ = vision.logits(vision.chunks(f"{BEFORE}{marker}{AFTER}", pixels))
        ids = []
        row = logits
        for _ in range(GENERATED):
            ids.append(int(row.argmax()))
            model.decode(ids[-1:])
            row = model.last_logits()
        return logits, ids


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


@pytest.mark.behaviour("B-100")
@pytest.mark.parametrize("name", ["vision", "mrope"])
async def test_an_image_of_many_batches_is_encoded_once_and_equals_one_large_batch(pairs: Path, name: str) -> None:
    pixels = picture(3)
    rows: list[NDArray[np.float32]] = []
    for batch in (512, 16):  # 64 and 60 rows
        async with seeing(pairs, name, batch=batch) as harness:
            image = harness.engine.read_image(image_file(pixels))
            rows.append(await harness.logits(**prompt(harness, BEFORE, image, AFTER)))
            assert harness.encoded == 1
            if batch == 16:
                assert harness.decode_calls >= 6
    assert_equals_cold(rows[1], rows[0])


@pytest.mark.behaviour("B-100", "B-21")
@pytest.mark.parametrize("name", PAIRS)
async def test_images_and_texts_side_by_side_answer_as_alone(pairs: Path, name: str) -> None:
    asked: dict[str, Any] = {"max_tokens": GENERATED, "ignore_eos": True, "cache_prompt": False}
    async with seeing(pairs, name, slots=6) as harness:
        images = [harness.engine.read_image(image_file(picture(seed))) for seed in range(3)]
        prompts = [prompt(harness, BEFORE, image, AFTER) for image in images]
        prompts += [prompt(harness, f"Tell me about number {number} of all") for number in range(3)]
        alone = [await harness.logits(**each, cache_prompt=False) for each in prompts]
        streams = [harness.open(**each, **{**asked, "top_logprobs": 0}) for each in prompts]
        await asyncio.gather(*(harness.read(stream) for stream in streams))
        for stream, cold in zip(streams, alone, strict=True):
            rows = harness.rows.pop(stream.id)
            assert len(rows) == GENERATED
            assert_equals_cold(rows[0], cold)


@pytest.mark.behaviour("B-36")
@pytest.mark.parametrize("name", PAIRS)
async def test_a_prefix_ends_before_or_behind_an_image(pairs: Path, name: str) -> None:
    async with seeing(pairs, name) as harness:
        one, two = (harness.engine.read_image(image_file(picture(seed))) for seed in (1, 2))
        before = len(prompt(harness, BEFORE)["prompt"])
        cold = await harness.logits(**prompt(harness, BEFORE, two, AFTER), cache_prompt=False)
        await harness.ask(**prompt(harness, BEFORE, one, AFTER), max_tokens=1)
        assert harness.encoded == 2

        again = await harness.ask(**prompt(harness, BEFORE, one, " And what else?"), max_tokens=1)
        assert again.cached_tokens >= before + len(one.inputs)
        assert harness.encoded == 2
        await harness.ask(**prompt(harness, "Something else"), max_tokens=1)
        stream = harness.open(**prompt(harness, BEFORE, two, AFTER), max_tokens=1, top_logprobs=0)
        answer = await harness.read(stream)
        assert answer.cached_tokens <= before + one.units[0].lead
        assert_equals_cold(harness.rows.pop(stream.id)[0], cold)


@pytest.mark.behaviour("B-36", "B-33")
@pytest.mark.parametrize("name", ["vision", "mrope"])
async def test_a_conversation_goes_on_behind_its_image_also_from_a_parked_or_forked_prompt(
    pairs: Path, name: str
) -> None:
    async with seeing(pairs, name, slots=4, context=2048) as harness:
        image = harness.engine.read_image(image_file(picture(1)))
        first = prompt(harness, BEFORE, image, AFTER)
        follow = prompt(harness, BEFORE, image, AFTER, " Then tell me more about it.")
        cold = await harness.logits(**follow, cache_prompt=False)
        await harness.ask(**first, max_tokens=2)
        for number in range(2):  # long prompts of others push it out of the cells
            await harness.ask(**prompt(harness, f"{number} " + "many words of others " * 120), max_tokens=1)
        assert harness.engine._loop is not None
        assert any(min(view.held) < 0 for view in harness.engine._loop._slots._parking.views())
        stream = harness.open(**follow, max_tokens=1, top_logprobs=0)
        answer = await harness.read(stream)
        assert answer.cached_tokens >= len(first["prompt"]) - 1
        assert_equals_cold(harness.rows.pop(stream.id)[0], cold)
        # The slot is busy with the same image while another question about it comes.
        busy = harness.open(**follow, max_tokens=60, ignore_eos=True)
        await harness.until(lambda: busy.text.counted > 0)
        forked = await harness.ask(**prompt(harness, BEFORE, image, " Who?"), max_tokens=1)
        assert forked.cached_tokens >= len(prompt(harness, BEFORE, image)["prompt"])
        await harness.read(busy)


@pytest.mark.behaviour("B-53", "B-45")
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("keep", [0, -1], ids=["image goes", "image stays"])
async def test_generation_passes_the_context_with_an_image_in_it(pairs: Path, name: str, keep: int) -> None:
    context = 384 if name == "vision_swa" else 128
    async with seeing(pairs, name, context=context) as harness:
        image = harness.engine.read_image(image_file(picture(1)))
        asked = prompt(harness, BEFORE, image, AFTER)
        answer = await harness.ask(**asked, max_tokens=2 * context, ignore_eos=True, keep_tokens=keep)
        assert len(answer.ids) == 2 * context
        held = held_by(harness, answer.slot_id)
        assert (min(held) < 0) is (keep == -1)


@pytest.mark.behaviour("B-55", "B-56")
async def test_a_prompt_that_is_too_long_loses_its_image_whole(pairs: Path) -> None:
    async with seeing(pairs, "vision", context=128) as harness:
        image = harness.engine.read_image(image_file(picture(1)))
        asked = prompt(harness, "one two three four five six ", image, "word " * 100)
        answer = await harness.ask(**asked, max_tokens=1, keep_tokens=1)
        assert answer.end.times is not None
        assert answer.end.times.prompt_tokens <= 128
        assert harness.encoded == 0
        error = await refused(harness.ask(**asked, max_tokens=1, truncate=False))
        assert isinstance(error, PromptTooLong)


@pytest.mark.behaviour("B-102")
async def test_a_load_widens_its_batches_for_images_that_are_seen_as_a_whole(pairs: Path) -> None:
    pixels = picture(1)
    logits, _ = reference(pairs, "vision_swa", pixels)
    async with seeing(pairs, "vision_swa", batch=128) as harness:
        image = harness.engine.read_image(image_file(pixels))
        assert image.units[0].rows == 256
        assert image.units[0].whole
        assert_equals_cold(await harness.logits(**prompt(harness, BEFORE, image, AFTER)), logits)


@pytest.mark.behaviour("B-62")
@pytest.mark.parametrize("damage", ["other model", "cut"])
async def test_a_projector_that_cannot_be_used_leaves_a_text_model_and_a_warning(
    pairs: Path, tmp_path: Path, damage: str
) -> None:
    model, projector = build_pair("vision", pairs)
    if damage == "cut":
        whole, projector = projector, tmp_path / "cut.gguf"
        projector.write_bytes(whole.read_bytes()[:-200_000])
    else:
        projector = build(replace(recipe_of("mmproj_vision"), name="other", embedding=256), tmp_path)
    async with running(model, projector=projector) as harness:
        assert harness.model is not None
        assert any("images are refused" in warning for warning in harness.model.warnings)
        assert (await harness.ask("A text", max_tokens=2)).ids
        with pytest.raises(UnsupportedCapability, match="does not support images"):
            harness.engine.read_image(image_file(picture(1)))


async def test_a_damaged_image_is_the_caller_s_error_and_hurts_nobody(pairs: Path) -> None:
    async with seeing(pairs, "vision") as harness:
        file = image_file(picture(1))
        damaged = file[:60] + bytes(40) + file[100:]  # the header is whole
        image = harness.engine.read_image(damaged)
        neighbour = harness.open("A neighbour", max_tokens=40, ignore_eos=True)
        error = await refused(harness.ask(**prompt(harness, BEFORE, image, AFTER), max_tokens=1))
        assert isinstance(error, InvalidRequest)
        assert "PNG" in error.message
        assert len((await harness.read(neighbour)).ids) == 40
        for bytes_ in (b"", b"no image at all", file[:20]):
            with pytest.raises(InvalidRequest):
                harness.engine.read_image(bytes_)
        good = harness.engine.read_image(file)
        assert (await harness.ask(**prompt(harness, BEFORE, good, AFTER), max_tokens=1)).ids


@pytest.mark.behaviour("B-105", "B-12")
async def test_a_cancelled_request_gives_its_image_back_whenever_that_happens(pairs: Path) -> None:
    async with seeing(pairs, "mrope", slots=2) as harness:
        for seed in range(12):
            image = harness.engine.read_image(image_file(picture(seed, width=320, height=240)))
            stream = harness.open(**prompt(harness, BEFORE, image, AFTER), max_tokens=200, ignore_eos=True)
            if seed % 3 == 1:
                await harness.until(lambda: images_of(harness).live > 0 or stream.freed)  # noqa: B023
            elif seed % 3 == 2:
                await decoded(harness, harness.decode_calls + 1)
            harness.streams.close(stream)
            await harness.idle()
            assert images_of(harness).live == 0
        text = await harness.ask("And a text", max_tokens=3, ignore_eos=True)
        assert len(text.ids) == 3


@pytest.mark.behaviour("B-105")
async def test_two_hundred_images_leave_nothing_behind(pairs: Path) -> None:
    async with seeing(pairs, "vision") as harness:

        async def ask(seed: int) -> None:
            image = harness.engine.read_image(image_file(picture(seed, width=48, height=48)))
            await harness.ask(**prompt(harness, BEFORE, image, AFTER), max_tokens=1)

        for seed in range(40):
            await ask(seed)
        after_warm_up = resident_bytes()
        for seed in range(40, 240):
            await ask(seed)
        await harness.idle()
        assert images_of(harness).live == 0
        gc.collect()
        alive = gc.get_objects()
        encoded = sum(isinstance(value, EncodedImage) for value in alive)
        assert encoded == images_of(harness).kept == KEPT_IMAGES
        assert sum(isinstance(value, PreparedImage) for value in alive) <= 1
        assert resident_bytes() - after_warm_up < 4 * 1024 * 1024
        assert harness.encoded == 240


async def decoded(harness: Harness, calls: int) -> None:
    """Wait until there were so many decode calls."""
    await harness.until(lambda: harness.decode_calls >= calls)


def held_by(harness: Harness, slot_id: int) -> list[int]:
    """The inputs in a slot's cells."""
    assert harness.engine._loop is not None
    return harness.engine._loop._slots.slots[slot_id].held


def images_of(harness: Harness) -> MediaStore:
    """The images that sequences use."""
    assert harness.engine._loop is not None
    assert harness.engine._loop.media is not None
    return harness.engine._loop.media.store


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.behaviour("B-104")
async def test_a_marker_in_the_text_of_a_model_without_eyes_is_text(pairs: Path) -> None:
    text = "[img-0] hi"
    async with running(build("dense", pairs)) as harness:
        ids = harness.engine.vocabulary.tokenize(text.encode(), parse_special=False)
        assert harness.engine.vocabulary.detokenize(ids) == text.encode()
        answer = await harness.ask(ids, max_tokens=2, ignore_eos=True)
        assert answer.end.times is not None
        assert answer.end.times.prompt_tokens == len(ids)
        assert len(answer.ids) == 2


@pytest.mark.behaviour("B-73", "B-101")
@pytest.mark.parametrize("name", PAIRS)
def test_a_measurement_counts_the_projector_and_encodes_nothing(
    pairs: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(*_: object) -> int:
        raise AssertionError("something was encoded")

    monkeypatch.setattr(mtmd, "mtmd_encode_chunk", encode)
    model, projector = build_pair(name, pairs)
    layout = Layout(slots=2, context_tokens=1024, batch_tokens=128, threads=1)
    with_projector = measure(ModelFiles(model=model, projector=projector), layout)
    without = measure(ModelFiles(model=model), layout)
    assert with_projector.host.projector_bytes > projector.stat().st_size * 0.9
    assert without.host.projector_bytes == 0
    assert with_projector.host.weights_bytes == without.host.weights_bytes


@pytest.mark.behaviour("B-73", "B-65")
@pytest.mark.parametrize("name", PAIRS)
async def test_a_loaded_projector_holds_what_was_measured(pairs: Path, name: str) -> None:
    model, projector = build_pair(name, pairs)
    layout = Layout(slots=2, context_tokens=1024, batch_tokens=128, threads=1)
    measured = measure(ModelFiles(model=model, projector=projector), layout)
    async with seeing(pairs, name, slots=2, context=1024, batch=128) as harness:
        assert harness.model is not None
        assert harness.model.memory is not None
        held = harness.model.memory.host.projector_bytes
        assert projector.stat().st_size * 0.9 < held
        assert abs(measured.host.projector_bytes - held) < 4 * 1024 * 1024
        assert measured.host.graph_bytes == harness.model.memory.host.graph_bytes


@pytest.mark.behaviour("B-20", "B-43", "B-105")
@pytest.mark.parametrize("name", PAIRS)
async def test_a_storm_of_images_texts_and_cancels_ends_with_everything_free(pairs: Path, name: str) -> None:
    context = 600 if name == "vision_swa" else 160
    random = Random(7)
    async with seeing(pairs, name, slots=4, context=context, batch=64) as harness:
        images = [harness.engine.read_image(image_file(picture(seed, width=96, height=96))) for seed in range(6)]

        async def client(number: int) -> None:
            for turn in range(6):
                shown = [random.choice(images) for _ in range(random.choice((0, 1, 1, 2)))]
                parts: list[str | PreparedImage] = [f"{number} {turn} ", *shown, "and a word " * random.randrange(12)]
                stream = harness.open(
                    **prompt(harness, *parts), max_tokens=random.choice((1, 20, 200)), ignore_eos=True
                )
                if random.random() < 0.4:
                    calls = harness.decode_calls + random.randrange(4)
                    await decoded(harness, calls)
                    harness.streams.close(stream)
                with suppress(RequestCanceled, InvalidRequest):
                    await harness.read(stream)

        await asyncio.gather(*(client(number) for number in range(6)))
        await harness.idle()
        assert images_of(harness).live == 0
        image = images[0]
        warm = await harness.logits(**prompt(harness, BEFORE, image, AFTER))
        assert_equals_cold(warm, await harness.logits(**prompt(harness, BEFORE, image, AFTER), cache_prompt=False))


@pytest.mark.behaviour("B-64", "B-73")
@pytest.mark.parametrize("name", PAIRS)
async def test_a_projector_changes_nothing_in_the_report_of_its_text_model(pairs: Path, name: str) -> None:
    model, projector = build_pair(name, pairs)
    reports = []
    for vision in (None, projector):
        async with running(model, projector=vision, flash_attention=FlashAttention.ON) as harness:
            assert harness.model is not None
            assert harness.model.memory is not None
            reports.append(harness.model.memory.host)
    blind, sees = reports
    assert (blind.projector_bytes, sees.projector_bytes > 0) == (0, True)
    assert replace(sees, projector_bytes=0) == blind

"""A model in several files is the model in one, in every engine and every figure."""

from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import BadModelFile
from common.spec.layout import FlashAttention, Layout
from runner.core.model.model_files import AdapterFile, ModelFiles
from runner.engine.batched.engine import BatchedEngine
from runner.inspect import describe_file
from runner.measure import measure
from tests.engines.reference import ReferenceEngine
from tests.integration.runner.conftest import Zoo
from tests.integration.runner.contract import driven
from tests.integration.runner.processes import collect, greedy, started
from tests.integration.runner.split import split_gguf
from tools.model_zoo import build_adapter

LAYOUT = Layout(slots=1, context_tokens=256, batch_tokens=64, threads=1, flash_attention=FlashAttention.OFF)
PROMPT = "The weather is cold in the morning."


@pytest.fixture
def blobs(zoo: Zoo, tmp_path: Path) -> list[Path]:
    """Three parts under names that say nothing, as in a store."""
    parts = split_gguf(zoo("dense"), tmp_path, parts=3)
    return [part.rename(tmp_path / f"blob-{3 - number}") for number, part in enumerate(parts)]


def files_of(parts: list[Path], adapters: tuple[AdapterFile, ...] = ()) -> ModelFiles:
    return ModelFiles(model=parts[0], more=tuple(parts[1:]), adapters=adapters)


@pytest.mark.behaviour("B-153")
def test_a_split_model_says_what_the_whole_one_says(zoo: Zoo, blobs: list[Path], tmp_path: Path) -> None:
    adapter = (AdapterFile(path=build_adapter(zoo("dense"), tmp_path), scale=0.5),)
    for adapters in ((), adapter):
        whole = ModelFiles(model=zoo("dense"), adapters=adapters)
        split = files_of(blobs, adapters=adapters)
        with driven(ReferenceEngine(whole, LAYOUT)) as driver:
            expected = driver.ask(PROMPT, max_tokens=24).ids
        with driven(BatchedEngine(split, LAYOUT)) as driver:
            assert driver.ask(PROMPT, max_tokens=24).ids == expected
        with driven(ReferenceEngine(split, LAYOUT)) as driver:
            assert driver.ask(PROMPT, max_tokens=24).ids == expected


@pytest.mark.behaviour("B-64")
def test_a_split_model_is_described_and_measured_as_the_whole_one(zoo: Zoo, blobs: list[Path]) -> None:
    whole, split = describe_file(zoo("dense")), describe_file(*blobs)
    for description in (whole, split):
        description.ClearField("metadata_json")
    assert split == whole
    layout = replace(LAYOUT, slots=2)
    assert measure(files_of(blobs), layout) == measure(ModelFiles(model=zoo("dense")), layout)


def test_parts_in_another_order_or_too_few_are_refused_by_name(blobs: list[Path], zoo: Zoo) -> None:
    for parts, words in (
        ([blobs[1], blobs[0], blobs[2]], "it is file"),
        (blobs[:2], "one of 3 files of its model; 2 files are here"),
        (blobs[:1], "one of 3 files of its model; 1 file is here"),
        ([*blobs[:2], zoo("dense")], "it is a whole model"),
    ):
        with pytest.raises(BadModelFile, match=words):
            describe_file(*parts)


def test_a_part_that_was_cut_short_is_named(blobs: list[Path]) -> None:
    content = blobs[2].read_bytes()
    blobs[2].write_bytes(content[:-1])
    with (
        pytest.raises(BadModelFile, match=rf"{blobs[2].name}: truncated"),
        driven(BatchedEngine(files_of(blobs), LAYOUT)),
    ):
        pass


async def test_a_runner_process_takes_the_parts_from_its_command_line(
    zoo: Zoo, blobs: list[Path], tmp_path: Path
) -> None:
    answers = []
    more = [word for part in blobs[1:] for word in ("--more", str(part))]
    for name, model, options in (("whole", zoo("dense"), ()), ("split", blobs[0], more)):
        directory = tmp_path / name
        directory.mkdir()
        async with started(model, directory, *options) as runner:
            await runner.ready()
            answers.append((await collect(runner.client, greedy(PROMPT))).text)
    assert answers[0] == answers[1]

"""LoRA adapters: what a runner says with them is what llama-cpp-python's `Llama` says with them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from common.errors import BadModelFile, DeviceMemoryExhausted, InvalidRequest
from common.spec.layout import FlashAttention, Layout
from runner.core.model.model_files import AdapterFile, ModelFiles
from runner.engine.contract.engine import Engine
from runner.measure import measure
from tests.engines.reference import ReferenceEngine
from tests.integration.runner.conftest import Zoo
from tests.integration.runner.contract import Driver, driven
from tests.integration.runner.devices import loaded, spread
from tests.integration.runner.harness import assert_equals_cold
from tests.integration.runner.pooled_harness import cosine_distance, pooled
from tests.integration.runner.processes import collect, greedy, started
from tests.limited_device import MIB, limited_device
from tools.model_zoo import build_adapter

HOST = Layout(slots=2, context_tokens=256, batch_tokens=64, threads=1, flash_attention=FlashAttention.OFF)
PROMPT = "The weather is cold in the morning."
TOKENS = 24


@pytest.fixture
def adapter(zoo: Zoo, tmp_path: Path) -> Path:
    return build_adapter(zoo("dense"), tmp_path)


@contextmanager
def reference(path: Path, *adapters: AdapterFile) -> Iterator[Driver]:
    engine: Engine = ReferenceEngine(ModelFiles(model=path, adapters=adapters), replace(HOST, slots=1))
    with driven(engine) as driver:
        yield driver


def said(driver: Driver, prompt: tuple[int, ...]) -> tuple[list[int], list[NDArray[np.float32]]]:
    answer = driver.ask(prompt, max_tokens=TOKENS, top_logprobs=0)
    return answer.ids, answer.rows


@pytest.mark.behaviour("B-153")
@pytest.mark.parametrize("scale", [1.0, 0.4])
def test_greedy_output_with_an_adapter_is_the_references_and_not_the_models(
    zoo: Zoo, adapter: Path, scale: float
) -> None:
    path, files = zoo("dense"), (AdapterFile(path=adapter, scale=scale),)
    with reference(path, *files) as oracle:
        prompt = oracle.tokens(PROMPT)
        expected_ids, expected_rows = said(oracle, prompt)
    with loaded(path, HOST, adapters=files) as driver:
        ids, rows = said(driver, prompt)
        # Computed with the adapter as well: what the second sequence takes from the first one's cache.
        again = driver.ask(prompt, max_tokens=TOKENS)
        assert again.times is not None
        assert again.times.cached_tokens > 0
        assert again.ids == ids
    with loaded(path, HOST) as driver:
        base_ids, base_rows = said(driver, prompt)
    assert ids == expected_ids
    assert base_ids != ids
    for mine, theirs in zip(rows, expected_rows, strict=True):
        assert_equals_cold(mine, theirs)
    assert float(np.abs(rows[0] - base_rows[0]).max()) > 0.1 * float(np.abs(base_rows[0]).max())


def test_adapters_add_up_and_one_of_scale_zero_is_none(zoo: Zoo, adapter: Path, tmp_path: Path) -> None:
    path, other = zoo("dense"), build_adapter(zoo("dense"), tmp_path, name="other")

    def row(*files: tuple[Path, float]) -> NDArray[np.float32]:
        adapters = tuple(AdapterFile(path=file, scale=scale) for file, scale in files)
        with loaded(path, HOST, adapters=adapters) as driver:
            return driver.ask(PROMPT, max_tokens=1, top_logprobs=0).rows[0]

    base, both = row(), row((adapter, 1.0), (other, 1.0))
    assert_equals_cold(row((adapter, 0.0)), base)
    assert_equals_cold(row((other, 1.0), (adapter, 1.0)), both)
    for alone in (row((adapter, 1.0)), row((other, 1.0)), base):
        assert float(np.abs(alone - both).max()) > 0.1 * float(np.abs(both).max())


@pytest.mark.behaviour("B-64")
def test_a_report_counts_adapters_where_the_weights_lie_that_they_change(zoo: Zoo, adapter: Path) -> None:
    path, files = zoo("dense"), (AdapterFile(path=adapter),)
    sizes = {tensor.name: int(tensor.n_bytes) for tensor in gguf.GGUFReader(adapter).tensors}
    of_block = [sum(size for name, size in sizes.items() if name.startswith(f"blk.{i}.")) for i in range(8)]
    assert all(of_block)
    with limited_device(mib=64) as device:
        layout = spread((device,), (5,))
        plain = measure(ModelFiles(model=path), layout)
        planned = measure(ModelFiles(model=path, adapters=files), layout)
        for place, blocks in ((0, range(4, 8)), (None, range(4))):
            before, after = (report.host if place is None else report.devices[place] for report in (plain, planned))
            grown = [after.layer_weights_bytes[block] - before.layer_weights_bytes[block] for block in range(8)]
            assert grown == [of_block[block] if block in blocks else 0 for block in range(8)]
            assert after.weights_bytes - before.weights_bytes == sum(grown)
        with loaded(path, layout, adapters=files) as driver:
            assert driver.model.memory is not None
            ((_, held),) = driver.model.memory.devices
            assert held.weights_bytes == planned.devices[0].weights_bytes
            assert abs(held.total_bytes - device.used_bytes()) <= 64 * 1024
            on_device = driver.ask(PROMPT, max_tokens=TOKENS).ids
        with loaded(path, HOST, adapters=files) as driver:
            assert driver.ask(PROMPT, max_tokens=TOKENS).ids == on_device


@pytest.mark.parametrize(
    ("of", "model", "words"),
    [
        ("dense", "tied", "does not have"),
        ("moe", "dense", "arch mismatch"),
        ("dense_wide_head", "dense", "incorrect shape"),
    ],
)
def test_an_adapter_of_another_model_is_refused_by_name(
    zoo: Zoo, tmp_path: Path, of: str, model: str, words: str
) -> None:
    files = (AdapterFile(path=build_adapter(zoo(of), tmp_path)),)
    with pytest.raises(BadModelFile, match=rf"adapter\.gguf.*{words}"), loaded(zoo(model), HOST, adapters=files):
        pass


def test_a_model_is_no_adapter_and_a_missing_file_is_named(zoo: Zoo, tmp_path: Path) -> None:
    with (
        pytest.raises(BadModelFile, match=r"general\.type to be 'adapter'"),
        loaded(zoo("dense"), HOST, adapters=(AdapterFile(path=zoo("dense")),)),
    ):
        pass
    with (
        pytest.raises(BadModelFile, match=r"none\.gguf"),
        loaded(zoo("dense"), HOST, adapters=(AdapterFile(path=tmp_path / "none.gguf"),)),
    ):
        pass


@pytest.mark.behaviour("B-68")
def test_an_adapter_that_does_not_fit_on_a_device_is_refused_with_its_size(zoo: Zoo, adapter: Path) -> None:
    path = zoo("dense")
    with limited_device(mib=256) as roomy:
        (size,) = measure(ModelFiles(model=path), spread((roomy,), (9,))).devices
    room = (size.weights_bytes + adapter.stat().st_size / 2) / MIB
    with (
        limited_device(mib=room) as device,
        pytest.raises(DeviceMemoryExhausted, match=r"gpu-a refused [1-9][0-9]* bytes for adapters"),
        loaded(path, spread((device,), (9,)), adapters=(AdapterFile(path=adapter),)),
    ):
        pass


def test_the_reference_takes_one_adapter(zoo: Zoo, adapter: Path) -> None:
    one = AdapterFile(path=adapter)
    with pytest.raises(InvalidRequest, match="one adapter"), reference(zoo("dense"), one, one):
        pass


def test_a_pooled_model_takes_adapters_too(zoo: Zoo, tmp_path: Path) -> None:
    path = zoo("embed_last")
    adapter = build_adapter(path, tmp_path)
    vectors, weights = [], []
    for adapters in ((), (AdapterFile(path=adapter, scale=0.0),), (AdapterFile(path=adapter),)):
        with pooled(path, adapters=adapters) as harness:
            vectors += harness.compute([harness.tokens(PROMPT)])
            assert harness.model is not None
            assert harness.model.memory is not None
            weights.append(harness.model.memory.host.weights_bytes)
    assert cosine_distance(vectors[0], vectors[1]) < 1e-5
    assert cosine_distance(vectors[0], vectors[2]) > 0.01
    assert weights[0] < weights[1] == weights[2]


async def test_a_runner_process_takes_adapters_from_its_command_line(zoo: Zoo, adapter: Path, tmp_path: Path) -> None:
    answers = []
    for name, options in (("base", ()), ("tuned", ("--adapter", f"{adapter}=1.0"))):
        directory = tmp_path / name
        directory.mkdir()
        async with started(zoo("dense"), directory, *options) as runner:
            await runner.ready()
            answers.append((await collect(runner.client, greedy(PROMPT))).text)
    assert answers[0] != answers[1]

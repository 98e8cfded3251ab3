"""Loading of a model, and early ends of a load."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import BadModelFile, PunaError
from common.spec.layout import Layout
from runner.core.model.model_files import ModelFiles
from runner.engine.batched.engine import BatchedEngine
from runner.engine.bindings.library import start_engine
from runner.engine.llama.model import Model, load_model
from tests.integration.runner.conftest import Zoo
from tests.integration.runner.harness import Harness

LAYOUT = Layout(slots=1, context_tokens=64, batch_tokens=64, threads=1, cache_type_k="f16", cache_type_v="f16")


def load(path: Path, on_progress: Callable[[float], bool]) -> Model:
    start_engine()
    return load_model(path, LAYOUT, device_pointers={}, on_progress=on_progress)


@pytest.mark.behaviour("B-67", "B-80")
def test_the_first_progress_is_zero_and_the_last_is_one(zoo: Zoo) -> None:
    fractions: list[float] = []

    def note(fraction: float) -> bool:
        fractions.append(fraction)
        return True

    load(zoo("dense"), note).close()
    assert fractions[0] == 0.0
    assert fractions[-1] == 1.0
    assert fractions == sorted(fractions)


@pytest.mark.behaviour("B-67")
def test_a_load_that_is_stopped_before_the_first_byte_gives_everything_back(zoo: Zoo) -> None:
    calls: list[float] = []

    def refuse(fraction: float) -> bool:
        calls.append(fraction)
        return False

    with pytest.raises(PunaError):
        load(zoo("dense"), refuse)
    assert calls == [0.0]
    load(zoo("dense"), lambda _: True).close()


def test_an_exception_in_the_progress_callback_stops_the_load(zoo: Zoo) -> None:
    calls: list[float] = []

    def fail(fraction: float) -> bool:
        calls.append(fraction)
        raise ValueError("a bug in a callback")

    with pytest.raises(PunaError):
        load(zoo("dense"), fail)
    assert len(calls) == 1


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadModelFile, match=r"none\.gguf"):
        load(tmp_path / "none.gguf", lambda _: True)


async def test_stopping_an_engine_while_it_loads_ends_its_thread_without_an_error(zoo: Zoo) -> None:
    engine = BatchedEngine(ModelFiles(model=zoo("dense")), LAYOUT)
    harness = Harness(engine, overlap=True)
    engine.stop()
    loading = asyncio.create_task(harness.load())
    await harness.started.wait()
    assert await asyncio.to_thread(engine.join, 30)
    loading.cancel()
    assert harness.deaths == []
    assert harness.model is None


@pytest.mark.behaviour("B-44")
@pytest.mark.parametrize("name", ["dense", "recurrent", "swa"])
async def test_a_report_says_what_the_cache_takes(zoo: Zoo, name: str) -> None:
    sizes = []
    for context in (1024, 2048):
        layout = Layout(slots=2, context_tokens=context, batch_tokens=64, threads=1)
        engine = BatchedEngine(ModelFiles(model=zoo(name)), layout)
        harness = Harness(engine, overlap=True)
        await harness.load()
        assert harness.model is not None
        assert harness.model.memory is not None
        sizes.append(harness.model.memory.host.cache_bytes)
        engine.stop()
        assert await asyncio.to_thread(engine.join, 30)
    # Cells grow with the context; a recurrent state does not, and of a windowed model only some layers do.
    if name == "recurrent":
        assert sizes[0] == pytest.approx(sizes[1], rel=0.01)
    elif name == "dense":
        assert sizes[1] / sizes[0] == pytest.approx(2.0, rel=0.05)
    else:
        assert 1.0 < sizes[1] / sizes[0] < 1.95

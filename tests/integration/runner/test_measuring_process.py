"""RAM of a measuring process with the real engine: no more than the scheduler books for it."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from common.spec.layout import Layout
from scheduler.core.sizes.measuring_bytes import CELLS_COUNTED_MAX, measuring_bytes
from scheduler.core.values.facts import ModelFacts
from scheduler.core.values.memory import MIB
from scheduler.core.values.policy import Policy
from scheduler.core.values.view import DeviceKind, DeviceView, NodeView, Trust
from tools.model_zoo import build, shape

# A runner that says at its end how large it was.
TELLING = """
import sys
from runner.__main__ import main
code = main()
print(open("/proc/self/status").read(), file=sys.stderr)
sys.exit(code)
"""
LARGE_VOCABULARY = 131_072
CONTEXT_TOKENS = 1 << 20
RAM = DeviceView(
    id="cpu", name="CPU", kind=DeviceKind.CPU, backend="CPU", description="", pool_id="host", total_bytes=1 << 40,
    free_bytes=1 << 40, free_source="meminfo", free_age_s=0.0, trust=Trust.MEASURED, usable=True,
)  # fmt: skip
NODE = NodeView(id="a", address="", engine_build="", devices=(RAM,), models=(), runners=())


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """By size of the vocabulary; else alike."""
    directory = tmp_path_factory.mktemp("models")
    recipe = replace(shape("57m"), embedding=64, heads=2, kv_heads=1, layers=2, context_tokens=CONTEXT_TOKENS)
    return {
        tokens: build(replace(recipe, name=f"of-{tokens}", vocabulary_tokens=tokens), directory)
        for tokens in (1024, LARGE_VOCABULARY)
    }


def peak_bytes(model: Path, *, context_tokens: int, slots: int) -> int:
    """The most that was resident of the process, with the libraries and the file, which are page cache."""
    layout = f'{{"context_tokens": {context_tokens}, "slots": {slots}}}'
    arguments = ["measure", "--model", str(model), "--layout", layout]
    done = subprocess.run([sys.executable, "-c", TELLING, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def booked_bytes(vocabulary_size: int, *, context_tokens: int, slots: int) -> int:
    layout = Layout(context_tokens=context_tokens, slots=slots, batch_tokens=512)
    facts = ModelFacts(vocabulary_size=vocabulary_size, layer_weights_bytes=(1,) * 3, layer_key_width=(32,) * 2)
    return measuring_bytes(NODE, layout, facts, {"a": NODE}, Policy())["a", "cpu"]


def test_a_measurement_takes_no_more_ram_than_is_booked_for_its_cells_and_its_vocabulary(
    models: dict[int, Path],
) -> None:
    least = peak_bytes(models[1024], context_tokens=256, slots=1)
    assert least < booked_bytes(1024, context_tokens=256, slots=1) + 64 * MIB, "interpreter and libraries"

    slots = CELLS_COUNTED_MAX // CONTEXT_TOKENS
    of_cells = peak_bytes(models[1024], context_tokens=CONTEXT_TOKENS, slots=slots) - least
    booked = booked_bytes(1024, context_tokens=CONTEXT_TOKENS, slots=slots) - booked_bytes(
        1024, context_tokens=256, slots=1
    )
    assert 0.5 * booked < of_cells <= booked

    of_tokens = peak_bytes(models[LARGE_VOCABULARY], context_tokens=256, slots=1) - least
    booked = booked_bytes(LARGE_VOCABULARY, context_tokens=256, slots=1) - booked_bytes(
        1024, context_tokens=256, slots=1
    )
    in_file_bytes = models[LARGE_VOCABULARY].stat().st_size
    assert 0.5 * booked < of_tokens <= booked + in_file_bytes


def test_a_file_larger_than_memory_is_read_within_the_limits_of_memory(models: dict[int, Path], tmp_path: Path) -> None:
    """Its addresses are mapped, but not its bytes: this one ends in a hole."""
    large = tmp_path / "large.gguf"
    large.write_bytes(models[1024].read_bytes())
    os.truncate(large, 1 << 40)
    for words in (["inspect", str(large)], ["measure", "--model", str(large)]):
        done = subprocess.run([sys.executable, "-m", "runner", *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done

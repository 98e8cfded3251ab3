"""The zoo without the engine: the same bytes every time, the promised sizes, clear refusals."""

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gguf
import jinja2
import numpy as np
import pytest

from tools.model_zoo import SHAPES, ZOO, Damage, UnknownModel, build, build_pair, damage, shape, writer
from tools.model_zoo.__main__ import main
from tools.model_zoo.families import compose
from tools.model_zoo.noise import INT8_DEVIATION, Fill, random_tensor, tensor_bytes
from tools.model_zoo.recipe import WeightType
from tools.model_zoo.tokens import templates
from tools.model_zoo.tokens.byte_level import byte_level_tokenizer
from tools.model_zoo.tokens.merges import learn_merges
from tools.model_zoo.tokens.sentence_piece import llama_tokenizer
from tools.model_zoo.tokens.tokenizer import VocabularyTooSmall

ROOT = Path(__file__).resolve().parents[3]


def digests(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}


def test_the_tiny_zoo_has_the_same_bytes_in_every_process(tmp_path: Path) -> None:
    for seed in ("1", "2"):
        command = [sys.executable, "-m", "tools.model_zoo", str(tmp_path / seed)]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, timeout=60)
    assert set(digests(tmp_path / "1")) == {f"{name}.gguf" for name in ZOO}
    assert digests(tmp_path / "1") == digests(tmp_path / "2")


def test_tiny_models_are_small(tmp_path: Path) -> None:
    assert {name: size for name in ZOO if (size := build(name, tmp_path).stat().st_size) > 3_000_000} == {}


def test_a_current_file_is_not_written_again(tmp_path: Path) -> None:
    path = build("tied", tmp_path)
    before = path.stat()
    assert build("tied", tmp_path).stat().st_ino == before.st_ino


def test_another_recipe_of_the_same_name_replaces_the_file(tmp_path: Path) -> None:
    first = build("tied", tmp_path).read_bytes()
    second = build(replace(ZOO["tied"], seed=2), tmp_path).read_bytes()
    assert len(first) == len(second)
    assert first != second


def test_a_failed_build_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(writer, "_append_tensors", fail)
    with pytest.raises(OSError, match="disk full"):
        build("tied", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [*ZOO, "57m"])
def test_the_file_holds_what_the_plan_says(tmp_path: Path, name: str) -> None:
    recipe = {**ZOO, **SHAPES}[name]
    reader = gguf.GGUFReader(build(recipe, tmp_path))
    planned = {plan.name: (plan.shape, plan.size_bytes) for plan in compose(recipe).tensors}
    stored = {t.name: (tuple(int(n) for n in reversed(t.shape)), int(t.n_bytes)) for t in reader.tensors}
    assert stored == planned


@pytest.mark.parametrize(
    ("name", "parameters", "size_bytes"), [("57m", 57e6, 61e6), ("1b", 1.236e9, 1.313e9), ("8b", 8.03e9, 8.53e9)]
)
def test_big_shapes_have_the_parameters_of_their_models(name: str, parameters: float, size_bytes: float) -> None:
    plans = compose(shape(name)).tensors
    assert sum(plan.elements for plan in plans) == pytest.approx(parameters, rel=0.01)
    assert sum(plan.size_bytes for plan in plans) == pytest.approx(size_bytes, rel=0.01)


def test_a_long_tensor_is_made_in_pieces_of_bounded_size() -> None:
    rows, columns = 40_000, 1024
    pieces = [len(p) for p in random_tensor("t", rows, columns, WeightType.Q8_0, Fill(deviation=1.0))]
    assert sum(pieces) == tensor_bytes(rows * columns, WeightType.Q8_0)
    assert max(pieces) < 5_000_000


@pytest.mark.parametrize(
    ("weights", "kind"),
    [
        (WeightType.F32, gguf.GGMLQuantizationType.F32),
        (WeightType.F16, gguf.GGMLQuantizationType.F16),
        (WeightType.Q8_0, gguf.GGMLQuantizationType.Q8_0),
    ],
)
def test_noise_has_the_asked_deviation_in_every_storage_type(
    weights: WeightType, kind: gguf.GGMLQuantizationType
) -> None:
    data = b"".join(random_tensor("t", 512, 512, weights, Fill(deviation=0.25, weak_rows=(0, 8))))
    stored = np.frombuffer(data, dtype=np.uint8).reshape(512, -1)
    values = gguf.quants.dequantize(stored, kind).reshape(512, 512)
    assert values[8:].std() == pytest.approx(0.25, rel=0.02)
    assert values[:8].std() == pytest.approx(0.025, rel=0.05)
    assert abs(values[8:].mean()) < 0.005
    assert np.abs(values).max() <= 0.25 * 128 / INT8_DEVIATION * 1.01


def test_the_most_frequent_pair_is_merged_first_and_ties_go_by_text() -> None:
    assert learn_merges({"abab": 1, "abc": 1, "xy": 3}, 3) == [("a", "b"), ("x", "y"), ("ab", "ab")]


@pytest.mark.parametrize("tokens", [300, 1024, 32000, 128256])
def test_a_byte_level_vocabulary_has_exactly_the_asked_size(tokens: int) -> None:
    metadata = dict(byte_level_tokenizer(tokens).metadata)
    texts, merges = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]
    assert isinstance(texts, list)
    assert isinstance(merges, list)
    assert len(texts) == len(set(texts)) == tokens
    assert {str(merge).replace(" ", "") for merge in merges} <= set(texts)


def test_a_vocabulary_below_its_fixed_tokens_is_refused() -> None:
    with pytest.raises(VocabularyTooSmall):
        byte_level_tokenizer(256)
    with pytest.raises(VocabularyTooSmall):
        llama_tokenizer(300)


def test_an_unknown_name_is_refused_with_the_names_that_exist(tmp_path: Path) -> None:
    with pytest.raises(UnknownModel, match=r"'nonesuch'.*dense.*reranker"):
        build("nonesuch", tmp_path)
    with pytest.raises(UnknownModel, match="57m, 1b, 8b"):
        shape("dense")


def test_a_model_without_a_projector_is_no_pair(tmp_path: Path) -> None:
    with pytest.raises(UnknownModel, match="no projector"):
        build_pair("dense", tmp_path)


@pytest.mark.parametrize("kind", Damage)
def test_damage_leaves_the_original_as_it_was(tmp_path: Path, kind: Damage) -> None:
    whole = build("tied", tmp_path)
    before = whole.read_bytes()
    broken = damage(whole, kind.value)
    assert whole.read_bytes() == before
    assert broken != whole
    assert broken.read_bytes() != before


def test_the_command_line_builds_the_named_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "tied", "moe"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"tied.gguf", "moe.gguf"}
    assert "tied.gguf" in capsys.readouterr().out


def test_the_command_line_lists_all_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines()}
    assert listed == {*ZOO, *SHAPES}


def test_the_command_line_refuses_an_unknown_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "nonesuch"]) == 2
    assert "nonesuch" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


CONVERSATION = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


@pytest.mark.parametrize("trims", [False, True])
@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (
            templates.CHATML,
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            templates.CHATML_THINKING,
            (
                "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>assistant\n"
                "<think>\n\n</think>\n\n"
            ),
        ),
        (
            templates.GEMMA,
            "<s><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\nHello<end_of_turn>\n<start_of_turn>model\n",
        ),
        (templates.INSTRUCT, "<s>[INST] Hi [/INST] Hello</s>"),
    ],
)
def test_a_template_renders_alike_however_blocks_are_trimmed(template: str, expected: str, trims: bool) -> None:
    environment = jinja2.Environment(trim_blocks=trims, lstrip_blocks=trims, autoescape=False)
    rendered = environment.from_string(template).render(
        messages=CONVERSATION, bos_token="<s>", eos_token="</s>", add_generation_prompt=True, enable_thinking=False
    )
    assert rendered == expected


def test_tools_stand_in_the_system_message_with_what_it_said_before() -> None:
    messages = [{"role": "system", "content": "Be brief."}, *CONVERSATION]
    rendered = (
        jinja2.Environment(autoescape=False)
        .from_string(templates.CHATML)
        .render(messages=messages, tools=[{"name": "clock"}])
    )
    assert rendered.startswith("<|im_start|>system\nBe brief.\n\n")
    assert '<tools>\n{"name": "clock"}\n</tools>' in rendered
    assert rendered.count("<|im_start|>system") == 1

"""A stage counts as done only when it has ended, with the inputs of today."""

import json
from pathlib import Path

import pytest

from tools.setup.record import Record, digest_of_files, split_lock
from tools.setup.stages import CHECK, CMAKE_ARGS, ENGINE, ENVIRONMENT, PACKAGES, PUNA, STAGES, due_stages, read_inputs

ROOT = Path(__file__).resolve().parents[4]
LOCK = split_lock((ROOT / "requirements-dev.lock").read_text(encoding="utf-8"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a record in which every stage has ended."""
    record = Record(tmp_path / "setup.json", trusted=True)
    inputs = read_inputs(ROOT, LOCK, record, {})
    for stage in (ENVIRONMENT, PACKAGES, ENGINE, PUNA):
        record.begin(stage, inputs.of(stage))
        record.finish(stage)
    return tmp_path / "setup.json"


def due(path: Path, *, trusted: bool = True, root: Path = ROOT, **environ: str) -> tuple[str, ...]:
    record = Record(path, trusted=trusted)
    return due_stages(record, read_inputs(root, LOCK, record, environ))


def test_a_lock_is_split_at_the_engine() -> None:
    assert LOCK.engine.startswith("llama-cpp-python==")
    assert LOCK.engine.count("--hash=") == 1
    assert "\nllama-cpp-python==" not in LOCK.packages
    text = (ROOT / "requirements-dev.lock").read_text(encoding="utf-8")
    assert LOCK.packages.count("--hash=") + 1 == text.count("--hash=")
    assert LOCK.package_count == sum("==" in line for line in text.splitlines() if line[:1].isalpha()) - 1


def test_nothing_is_due_after_everything_has_ended(path: Path) -> None:
    assert due(path) == ()


def test_everything_is_due_on_a_fresh_machine(tmp_path: Path) -> None:
    assert due(tmp_path / "setup.json", trusted=False) == STAGES


def test_files_that_were_only_touched_change_nothing(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("same")
    before = digest_of_files([file])
    file.write_text("same")
    assert digest_of_files([file]) == before
    file.write_text("other")
    assert digest_of_files([file]) != before


@pytest.mark.parametrize("stage", [PACKAGES, PUNA])
def test_a_changed_input_runs_its_stage_alone(path: Path, stage: str) -> None:
    stages = json.loads(path.read_text())
    stages[stage]["from"] = {"other": "input"}
    path.write_text(json.dumps(stages))
    assert due(path) == (stage,)


def test_a_new_environment_is_filled_anew(path: Path) -> None:
    stages = json.loads(path.read_text())
    stages[ENVIRONMENT]["from"]["python"] = "3.9"
    path.write_text(json.dumps(stages))
    assert due(path) == STAGES


def test_other_flags_compile_the_engine_again_and_stay(path: Path) -> None:
    assert due(path, CMAKE_ARGS=CMAKE_ARGS) == ()
    cuda = f"{CMAKE_ARGS} -DGGML_CUDA=on"
    assert due(path, CMAKE_ARGS=cuda) == (ENGINE, CHECK)
    record = Record(path, trusted=True)
    record.begin(ENGINE, read_inputs(ROOT, LOCK, record, {"CMAKE_ARGS": cuda}).engine)
    record.finish(ENGINE)
    assert due(path) == ()
    assert due(path, CMAKE_ARGS=CMAKE_ARGS) == (ENGINE, CHECK)


@pytest.mark.parametrize("stage", [ENVIRONMENT, PACKAGES, ENGINE, PUNA])
def test_an_interrupted_stage_is_not_believed(path: Path, stage: str) -> None:
    record = Record(path, trusted=True)
    record.begin(stage, record.made_from(stage))
    assert stage in due(path)
    assert Record(path, trusted=True).is_unfinished(stage)


def test_without_the_mark_of_make_every_stage_is_looked_at(path: Path) -> None:
    assert due(path, trusted=False) == STAGES


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00"])
def test_a_broken_record_counts_as_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "setup.json"
    path.write_text(text)
    assert due(path) == STAGES

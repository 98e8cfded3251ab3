"""Checks of the options of a new model."""

import orjson
import pytest

from common.errors import InvalidRequest
from runner.core.store import creation


@pytest.mark.parametrize("name", ["m.gguf", "a/b/m-00001-of-00002.gguf", "with space.gguf", "x" * 250 + ".gguf"])
def test_relative_paths_name_files(name: str) -> None:
    creation.check_file_names([name], param="files")


@pytest.mark.parametrize(
    "name",
    ["", "..", "../m", "a/../m", "/m", "a\\m", "C:m", "m\0", "m\n", "x" * 256, "m.safetensors", "m.BIN", "dir/m.pt"],
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest):
        creation.check_file_names([name], param="files")


def test_wanted_parameters_lie_over_the_former_ones() -> None:
    merged = creation.merged_parameters('{"seed": 2, "stop": ["x"]}', '{"seed": 1, "top_k": 5}')
    assert orjson.loads(merged) == {"seed": 2, "top_k": 5, "stop": ["x"]}
    assert creation.merged_parameters("", "") == b""
    assert creation.merged_parameters("{}", "{}") == b""


@pytest.mark.parametrize(
    "text", ["x", "[]", "null", '{"a": null}', '{"a": {}}', '{"a": [1]}', '{"a": [["x"]]}', '{"a": NaN}']
)
def test_other_parameters_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        creation.merged_parameters(text, "")


def test_too_many_things_are_refused() -> None:
    many = {str(index): 1 for index in range(creation.PARAMETERS_MAX + 1)}
    with pytest.raises(InvalidRequest, match="more than"):
        creation.merged_parameters(orjson.dumps(many).decode(), "")
    message = {"role": "user", "content": "x"}
    creation.checked_messages(orjson.dumps([message] * creation.MESSAGES_MAX).decode())
    with pytest.raises(InvalidRequest, match="more than"):
        creation.checked_messages(orjson.dumps([message] * (creation.MESSAGES_MAX + 1)).decode())
    with pytest.raises(InvalidRequest, match="more than"):
        creation.check_file_names([f"{index}.gguf" for index in range(creation.FILES_MAX + 1)], param="files")
    creation.check_texts({"system": "x" * creation.TEXT_BYTES_MAX})
    with pytest.raises(InvalidRequest, match="system has more than"):
        creation.check_texts({"system": "x" * (creation.TEXT_BYTES_MAX + 1)})


@pytest.mark.parametrize(
    ("count", "words"),
    [(8_030_000_000, "8.0B"), (1_500_000_000_000, "1.5T"), (260_000, "260.0K"), (30_000_000, "30.0M"), (12, "12")],
)
def test_parameters_are_counted_in_words(count: int, words: str) -> None:
    assert creation.parameter_words(count) == words


def test_texts_are_measured_in_bytes_and_templates_are_looked_into() -> None:
    creation.check_texts({"system": "ü" * (creation.TEXT_BYTES_MAX // 2), "template": "{{ .Prompt }}"})
    with pytest.raises(InvalidRequest, match="system has more than"):
        creation.check_texts({"system": "ü" * (creation.TEXT_BYTES_MAX // 2) + "x"})
    with pytest.raises(InvalidRequest, match="template error"):
        creation.check_texts({"system": "{{ if", "template": "{{ if .A }}"})


def test_only_who_speaks_in_a_conversation_has_a_role() -> None:
    for role in ("system", "user", "assistant"):
        creation.checked_messages(orjson.dumps([{"role": role, "content": "x"}]).decode())
    for role in ("tool", "User", ""):
        with pytest.raises(InvalidRequest, match="invalid role"):
            creation.checked_messages(orjson.dumps([{"role": role, "content": "x"}]).decode())

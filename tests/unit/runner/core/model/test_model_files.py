"""Files of a model on a command line."""

from pathlib import Path

import pytest

from common.errors import InvalidRequest
from runner.core.model.model_files import AdapterFile, ModelFiles, adapter_argument, parse_adapter
from runner.host.runners.runner_spec import file_arguments


@pytest.mark.parametrize(
    ("text", "adapter"),
    [
        ("/a/b.gguf", AdapterFile(path=Path("/a/b.gguf"))),
        ("/a/b.gguf=0.5", AdapterFile(path=Path("/a/b.gguf"), scale=0.5)),
        ("/a=b/c.gguf=-1e-3", AdapterFile(path=Path("/a=b/c.gguf"), scale=-0.001)),
    ],
)
def test_an_adapter_is_a_path_and_a_scale(text: str, adapter: AdapterFile) -> None:
    assert parse_adapter(text) == adapter
    assert parse_adapter(adapter_argument(adapter)) == adapter


@pytest.mark.parametrize("text", ["", "=1", "/a/b.gguf=", "/a/b.gguf=strong", "/a/b.gguf=nan", "/a/b.gguf=inf"])
def test_what_is_no_adapter_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_adapter(text)


def test_the_command_line_names_every_file() -> None:
    files = ModelFiles(
        model=Path("m.gguf"),
        more=(Path("m2.gguf"), Path("m3.gguf")),
        projector=Path("p.gguf"),
        adapters=(AdapterFile(path=Path("a.gguf"), scale=0.5), AdapterFile(path=Path("b.gguf"))),
    )
    assert file_arguments(files) == [
        *("--model", "m.gguf", "--more", "m2.gguf", "--more", "m3.gguf", "--projector", "p.gguf"),
        *("--adapter", "a.gguf=0.5", "--adapter", "b.gguf=1.0"),
    ]
    assert file_arguments(ModelFiles(model=Path("m.gguf"))) == ["--model", "m.gguf"]

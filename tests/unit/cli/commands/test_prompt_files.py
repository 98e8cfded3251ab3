"""The value of `puna explain --prompt`."""

from pathlib import Path

import pytest

from cli.commands.question_files import read_prompt
from cli.errors import CommandFailed


def test_a_prompt_is_a_text_or_a_file_with_a_text_or_with_messages(tmp_path: Path) -> None:
    file = tmp_path / "prompt"
    said = {"messages": [{"role": "user", "content": "What is it?"}]}
    assert read_prompt("What is it?") == said
    assert read_prompt("word " * 2000)["messages"][0]["content"] == "word " * 2000
    for text, expected in (
        ("What is it?", said),
        ('{"messages": [], "tools": [1], "model": "x"}', {"messages": [], "tools": [1]}),
    ):
        file.write_text(text)
        assert read_prompt(str(file)) == expected
    file.write_text('{"json": "that is a text"}')
    assert read_prompt(str(file))["messages"][0]["content"] == '{"json": "that is a text"}'
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(CommandFailed, match="no UTF-8"):
        read_prompt(str(file))

"""aider: it has no tools, and reads the new text of a file from the answer."""

import os
import subprocess
import sys
from pathlib import Path

from task import MODEL, STREAM, URL, WORD, run

OPTIONS = ("--yes-always", "--no-git", "--no-check-update", "--no-show-model-warnings", "--no-show-release-notes",
           "--no-analytics", "--map-tokens", "0", "--edit-format", "whole")  # fmt: skip
CODE = f'print("{WORD}")\n'


def chat_completions_edit_a_file() -> None:
    where = {"OPENAI_API_BASE": f"{URL}/v1", "OPENAI_API_KEY": "any"}
    prompt = f"Print a word.\n⟪say hello.py\n```\n{CODE}```⟫"
    stream = "--stream" if STREAM else "--no-stream"
    command = [
        sys.executable,
        "-m",
        "aider",
        "--model",
        f"openai/{MODEL}",
        *OPTIONS,
        stream,
        "--message",
        prompt,
        "hello.py",
    ]
    subprocess.run(command, env=os.environ | where, check=True)
    assert Path("hello.py").read_text() == CODE


run(chat_completions_edit_a_file)

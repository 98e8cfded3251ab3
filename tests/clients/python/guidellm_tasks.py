"""GuideLLM measures conversations with a tool; its own report is checked."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from task import DOUBLE, MODEL, STREAM, TOOL_ANSWER, TOOL_QUESTION, URL, run

CONVERSATIONS = 3
TURNS = 2  # of each: the call, and the answer to its result


def chat_completions_tool_call() -> None:
    row = {"prompt": TOOL_QUESTION, "tools": json.dumps([DOUBLE]), "tool_response": "42"}
    Path("data.jsonl").write_text("".join(json.dumps(row) + "\n" for _ in range(CONVERSATIONS)))
    options = {
        "backend": {"kind": "openai_http", "target": URL, "model": MODEL, "stream": STREAM, "max_tokens": 100},
        "profile": {"kind": "concurrent", "streams": 2},
        "constraint": {"kind": "max_requests", "count": CONVERSATIONS * TURNS},
        "data": {"kind": "json_file", "path": "data.jsonl"},
        "output": {"kind": "json", "path": "report.json"},
    }
    program = str(Path(sys.executable).with_name("guidellm"))
    arguments = [part for name, value in options.items() for part in (f"--{name}", json.dumps(value))]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    subprocess.run([program, "run", *arguments, "--disable-console"], env=os.environ | offline, check=True)

    (benchmark,) = json.loads(Path("report.json").read_text())["benchmarks"]
    requests: dict[str, list[dict[str, Any]]] = benchmark["requests"]
    assert not requests["errored"], requests["errored"]
    done = requests["successful"]
    assert len(done) == CONVERSATIONS * TURNS, len(done)
    assert sum(TOOL_ANSWER in (one["output"] or "") for one in done) == CONVERSATIONS


run(chat_completions_tool_call)

"""Public chat templates, as llama.cpp carries them: each renders a conversation with tools, and its calls are read.

They are read from the source distribution that the engine was built from, where a cache still has it or pip can get it.
"""

import functools
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from gateway.core.models.routes import ModelInfo
from gateway.core.output_parsers.events import CallArguments, CallBegan
from gateway.core.output_parsers.families import Readers
from gateway.core.output_parsers.parser import EventParser
from gateway.core.output_parsers.syntax import CallFamily, syntax_of
from gateway.core.prepare.literals import Text
from gateway.core.request.answers import Chat, Message, ToolCall
from gateway.templates.chat_prompt import ChatPrompts
from gateway.templates.worker import make_renderer
from tests.unit.gateway.templates.test_chat_prompt import InProcess

PACKAGE = "llama-cpp-python"
INSIDE = Path("vendor/llama.cpp/models/templates")
DOWNLOAD_S_MAX = 120
ARGUMENTS = {"city": "Paris", "days": 3}
PROPERTIES = {
    "city": {"type": "string", "description": "Where."},
    "days": {"type": "integer", "description": "How long."},
}
TOOL = {
    "name": "get_weather",
    "description": "Get the weather.",
    "parameters": {"type": "object", "properties": PROPERTIES, "required": ["city"]},
}
# Most forbid system messages, or want what no caller of a chat has.
NOT_RENDERED = {
    "Kimi-K2-Instruct": "appends to a list, which the sandbox forbids",
    "Kimi-K2-Thinking": "appends to a list, which the sandbox forbids",
    "fireworks-ai-llama-3-firefunction-v2": "needs a variable `functions`",
    "google-gemma-2-2b-it": "refuses system messages",
    "llama-cpp-deepseek-r1": "writes a generator as JSON, which only llama.cpp's own Jinja can",
    "meetkai-functionary-medium-v3.2": "joins arguments as text; ours are objects, as most templates want them",
}
# Calls of these stay content.
NOT_READ = {
    "Apertus-8B-Instruct": "the name is the key of the object",
    "CohereForAI-c4ai-command-r-plus-tool_use": "prose around a block of code, with other keys",
    "GigaChat3-10B-A1.8B": "calls are messages of a role of their own",
    "GigaChat3.1-10B-A1.8B": "one marker, which nothing closes",
    "Kimi-K3": "nested markers of its own",
    "MiniMax-M3": "tags with a marker of its own before each",
    "meetkai-functionary-medium-v3.1": "the name is part of the tag, the arguments are JSON",
    "muse-glimmer": "tags of its own behind a header",
    "openbmb-MiniCPM5-1B": "tags of its own",
    "tencent-Hy3": "tags with a suffix of its own",
    "upstage-Solar-Open-100B": "markers of its own",
}
# The template says nothing of the calls in a conversation, so there is nothing to read.
CALLS_NOT_WRITTEN = {
    "HuggingFaceTB-SmolLM3-3B",
    "LFM2-8B-A1B",
    "LFM2.5-Instruct",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "ibm-granite-granite-3.3-2B-Instruct",
    "llama-cpp-rwkv-world",
    "microsoft-Phi-3.5-mini-instruct",
}
# Something of a conversation with tools is never written, whatever its place.
LEFT_OUT = {
    "llama-cpp-rwkv-world": "results of tools",
    "microsoft-Phi-3.5-mini-instruct": "results of tools",
    "mistralai-Mistral-Nemo-Instruct-2407": "the system message, unless a question is last",
}
FAMILIES = {
    "Qwen-Qwen3-0.6B": CallFamily.HERMES,
    "Qwen3-Coder": CallFamily.HERMES,
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": CallFamily.HERMES,
    "meta-llama-Llama-3.1-8B-Instruct": CallFamily.LLAMA,
    "mistralai-Mistral-Nemo-Instruct-2407": CallFamily.MISTRAL,
    "unsloth-mistral-Devstral-Small-2507": CallFamily.MISTRAL,
    "deepseek-ai-DeepSeek-V3.1": CallFamily.DEEPSEEK,
    "openai-gpt-oss-120b": CallFamily.HARMONY,
    "moonshotai-Kimi-K2": CallFamily.KIMI,
    "GLM-4.6": CallFamily.TAGGED,
    "MiniMax-M2": CallFamily.TAGGED,
    "ByteDance-Seed-OSS": CallFamily.TAGGED,
    "deepseek-ai-DeepSeek-V3.2": CallFamily.TAGGED,
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": CallFamily.SECTION,
    "NVIDIA-Nemotron-Nano-v2": CallFamily.SECTION,
    "google-gemma-4-31B-it": CallFamily.GEMMA,
    "LFM2.5-8B-A1B": CallFamily.PYTHON,
}


@functools.cache
def corpus() -> dict[str, str] | str:
    """Templates by name, or why there are none."""
    wanted = version(PACKAGE)
    home = Path(os.environ.get("UV_CACHE_DIR") or Path.home() / ".cache" / "uv")
    for directory in sorted(home.glob(f"sdists-v*/*/{PACKAGE}/{wanted}/*/src/{INSIDE}")):
        found = {path.stem: path.read_text(encoding="utf-8") for path in sorted(directory.glob("*.jinja"))}
        if found:
            return found
    with tempfile.TemporaryDirectory() as scratch:
        return _downloaded(wanted, Path(scratch))


def _downloaded(wanted: str, directory: Path) -> dict[str, str] | str:
    # The build back end stays isolated: pip asks it for the metadata, and .venv has none.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", PACKAGE]
    try:
        subprocess.run(
            [*command, f"{PACKAGE}=={wanted}"], cwd=directory, check=True, timeout=DOWNLOAD_S_MAX, capture_output=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"no source of {PACKAGE} {wanted} in uv's cache, and pip gets none: {error}"
    (archive,) = directory.glob("*.tar.gz")
    found: dict[str, str] = {}
    with tarfile.open(archive) as files:
        for member in files:
            if member.isfile() and member.name.endswith(".jinja") and str(INSIDE) in member.name:
                data = files.extractfile(member)
                assert data is not None
                found[Path(member.name).stem] = data.read().decode()
    return found


@pytest.fixture(scope="module")
def templates() -> dict[str, str]:
    found = corpus()
    if isinstance(found, str):
        pytest.skip(found)
    return found


def conversation(turns: int) -> list[dict[str, Any]]:
    call = {"type": "function", "id": "call12345", "function": {"name": "get_weather", "arguments": ARGUMENTS}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How is the weather?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "sunny", "name": "get_weather", "tool_call_id": "call12345"},
    ]
    return messages[:turns]


def rendered(template: str, turns: int, *, prompt: bool) -> dict[str, str]:
    variables = {
        "messages": conversation(turns),
        "tools": [{"type": "function", "function": TOOL}],
        "documents": None,
        "add_generation_prompt": prompt,
        "bos_token": "<s>",
        "eos_token": "</s>",
    }
    return make_renderer()(template, variables)


def written_call(template: str) -> str:
    """Cut the assistant's turn out of a rendered template: from the last marker before the prompt and the whole
    differ."""
    asked, whole = rendered(template, 2, prompt=True)["text"], rendered(template, 3, prompt=False)["text"]
    pairs = zip(asked, whole, strict=False)
    at = next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(asked), len(whole)))
    if at < len(asked):
        at = max(whole.rfind(mark, 0, at) for mark in "<\n")
    return whole[at:]


def calls_of(template: str, text: str) -> list[tuple[str, Any]]:
    readers = Readers(
        syntax=syntax_of(template, has_tools=True),
        tool_names=frozenset({"get_weather"}),
        types={"get_weather": {"city": "string", "days": "integer"}},
    )
    parser = EventParser(readers)
    calls: list[list[str]] = []
    for event in [*parser.feed(text), *parser.finish()]:
        if isinstance(event, CallBegan):
            calls.append([event.name, ""])
        elif isinstance(event, CallArguments):
            calls[-1][1] += event.fragment
    return [(name, json.loads(raw)) for name, raw in calls]


def test_conversations_with_tools_are_rendered(templates: dict[str, str]) -> None:
    failed = {
        name: answer["error"]
        for name, template in templates.items()
        for answer in (rendered(template, 4, prompt=True),)
        if "error" in answer
    }
    assert failed.keys() == NOT_RENDERED.keys() & templates.keys(), failed


def test_families_are_told_by_the_template(templates: dict[str, str]) -> None:
    found = {name: syntax_of(templates[name], has_tools=True).family for name in FAMILIES if name in templates}
    assert found == {name: family for name, family in FAMILIES.items() if name in templates}
    assert found


def test_a_call_is_read_as_its_template_writes_it(templates: dict[str, str]) -> None:
    unread = {}
    for name, template in templates.items():
        if name in NOT_RENDERED:
            continue
        text = written_call(template)
        if calls_of(template, text) != [("get_weather", ARGUMENTS)]:
            unread[name] = text[:200]
    assert unread.keys() == (NOT_READ.keys() | CALLS_NOT_WRITTEN) & templates.keys(), unread
    assert len(templates) - len(unread) - len(NOT_RENDERED) >= len(FAMILIES)


async def test_what_agents_add_as_system_and_behind_results_is_rendered_in_order(templates: dict[str, str]) -> None:
    call = ToolCall(name="get_weather", arguments=ARGUMENTS, id="call_abcdefghij")
    turns = (
        Message(role="system", content="text one"),
        Message(role="system", content="text two"),
        Message(role="user", content="text three"),
        Message(role="assistant", tool_calls=(call,)),
        Message(role="tool", content="text four", tool_name="get_weather", tool_call_id=call.id),
        Message(role="user", content="text five"),
        Message(role="system", content="text six"),
    )
    words = [message.content for message in turns if message.content]
    wrong = {}
    for name in templates.keys() - NOT_RENDERED.keys():
        model = ModelInfo(name=name, digest=name, chat_template=templates[name], bos_token="<s>", eos_token="</s>")
        chat = Chat(messages=turns, tools=({"type": "function", "function": TOOL},))
        prompt = await ChatPrompts(InProcess()).make(model, chat, None)
        text = "".join(segment.text for segment in prompt.segments if isinstance(segment, Text))
        places = [text.find(word) for word in words]
        if places[0] < 0 or places != sorted(places):
            wrong[name] = places
    assert wrong.keys() == LEFT_OUT.keys() & templates.keys(), wrong

"""Bodies of the Responses API with anything at any place: taken, or a typed error; never a bug."""

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from common.errors import PunaError
from gateway.core.request.answers import CallDelta
from gateway.core.request.tool_choice import offered_tools, openai_choice
from gateway.http.openai.responses_calls import call_item
from gateway.http.openai.responses_compaction import kept_items
from gateway.http.openai.responses_items import read_items
from gateway.http.openai.responses_tools import ToolTable

LARK = {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}
CALLS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("function_call", {"name": "ask", "namespace": "team", "arguments": "{}"}, {"output": "x"}),
    ("custom_tool_call", {"name": "edit", "input": "x"}, {"output": [{"type": "input_text", "text": "x"}]}),
    ("local_shell_call", {"action": {"command": ["x"], "timeout_ms": 1}}, {"output": "x"}),
    ("shell_call", {"action": {"commands": ["x"]}}, {"output": [{"stdout": "x", "outcome": {"type": "timeout"}}]}),
    ("apply_patch_call", {"operation": {"type": "create_file", "path": "x"}}, {"status": "completed", "output": "x"}),
]
BODY: dict[str, Any] = {
    "tools": [
        {"type": "function", "name": "run", "description": "x", "parameters": {}, "strict": False},
        {"type": "custom", "name": "edit", "description": "x", "format": LARK},
        {"type": "namespace", "name": "team", "tools": [{"type": "function", "name": "ask"}, {"type": "custom"}]},
        {"type": "shell", "environment": {"type": "local"}},
        {"type": "local_shell"},
        {"type": "apply_patch"},
        {"type": "tool_search", "execution": "client", "parameters": {}},
        {"type": "web_search"},
    ],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "run"}]},
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "x"}, {"type": "input_image", "image_url": "x"}]},
        {"type": "reasoning", "summary": [{"text": "x"}], "content": [{"text": "y"}], "encrypted_content": "x"},
        *(
            item
            for number, (kind, call, result) in enumerate(CALLS)
            for item in (
                {"type": kind, "id": f"item_{number}", "call_id": f"call_{number}", **call},
                {"type": f"{kind}_output", "call_id": f"call_{number}", **result},
            )
        ),
        {"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": {"query": "x"}},
        {"type": "tool_search_output", "call_id": "c", "execution": "client", "tools": []},
        {"type": "mcp_call", "server_label": "s", "name": "n", "arguments": "{}", "output": "x", "error": {}},
        {"type": "code_interpreter_call", "code": "x", "outputs": [{"type": "logs", "logs": "x"}]},
        {"type": "compaction", "encrypted_content": "eyJwdW5hIjoxfQ=="},
        {"type": "additional_tools", "tools": []},
        {"type": "item_reference", "id": "x"},
        {"type": "compaction_trigger"},
    ],
}
VALUES: list[Any] = [None, True, 5, -1.5, "", "x", [], {}, [1], {"type": "x"}, ["a", None], {"a": {"b": []}}, "\r\n\0"]


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place below a value."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    for key in keys:
        yield (*place, key)
        yield from places(value[key], (*place, key))


def changed(source: random.Random) -> dict[str, Any]:
    """The body with something else at up to three of its places."""
    body = copy.deepcopy(BODY)
    for _ in range(source.randint(1, 3)):
        *path, last = source.choice(list(places(body)))
        holder = body
        for key in path:
            holder = holder[key]
        if source.random() < 0.3:
            del holder[last]
        else:
            holder[last] = copy.deepcopy(source.choice(VALUES))
    return body


def read(body: dict[str, Any], source: random.Random) -> None:
    table = ToolTable()
    table.add_all(body.get("tools", []), "tools")
    read_items(body.get("input"), table)
    kept_items(body.get("input"))
    choice = table.choice(body.get("tool_choice"))
    openai_choice(choice, table.functions)
    offered_tools(choice, table.functions)
    assert all(name.isascii() and name.isprintable() for name in table.ignored.names)
    for tool in table.tools:
        call = call_item(tool, CallDelta(index=0, id="call_1", name=tool.model_name))
        list(call.add(json.dumps(source.choice(VALUES))))
        list(call.close())
        json.dumps(call.item)


def test_the_body_is_good_but_for_one_tool_without_a_name() -> None:
    body = copy.deepcopy(BODY)
    with pytest.raises(PunaError, match=r"tools\[2\]\.tools\[1\] is no custom with a valid name"):
        read(body, random.Random(0))
    body["tools"][2]["tools"].pop()
    read(body, random.Random(0))


@pytest.mark.parametrize("seed", range(4))
def test_anything_at_any_place_is_taken_or_a_typed_error(seed: int) -> None:
    source = random.Random(seed)
    taken = 0
    for _ in range(500):
        body = changed(source)
        if source.random() < 0.9 and isinstance(body.get("tools"), list):
            body["tools"] = [tool for tool in body["tools"] if not isinstance(tool, dict) or "tools" not in tool]
        try:
            read(body, source)
            taken += 1
        except PunaError:
            pass
    assert taken > 20

"""Calls of tools as items: text that the model wrote as JSON, in any split."""

import json

import pytest

from gateway.core.request.answers import CallDelta
from gateway.http.openai.responses_calls import call_item
from gateway.http.openai.responses_tools import ToolTable

TEXTS = ["plain", 'a "b" \\ c\n\t/', "ünï 😀 \u2028", "", "\ud7ff\ue000", "x" * 500]


def written(kind: str, arguments: str, size: int) -> tuple[dict[str, object], str]:
    """The item, and the text of its deltas, when arguments come in pieces of this size."""
    table = ToolTable()
    table.add_all([{"type": kind, "name": "tool"}], "tools")
    item = call_item(table.tools[0], CallDelta(index=0, id="call_1", name="tool"))
    events = [event for at in range(0, len(arguments), size) for event in item.add(arguments[at : at + size])]
    deltas = [str(fields["delta"]) for _, fields in [*events, *item.close()] if "delta" in fields]
    return item.item, "".join(deltas)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_free_text_is_the_same_in_any_split(text: str, ascii_only: bool, size: int) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=ascii_only)
    item, deltas = written("custom", arguments, size)
    assert item["input"] == deltas == text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"patch": "x"}', "x"),
        ('"x"', "x"),
        ("just text", "just text"),
        ('{"input": 5}', '{"input": 5}'),
        ('{"input": "cut of', "cut of"),
        ('{"input": "bad \\d escape"}', 'bad \\d escape"}'),
        ('{"input": "half \\ud83d', "half \\ud83d"),
        ('{"input": "line\nend"}', "line\nend"),
    ],
)
def test_no_text_is_lost_where_the_model_writes_no_json(arguments: str, text: str) -> None:
    for size in (1, 1000):
        item, deltas = written("custom", arguments, size)
        assert item["input"] == deltas == text


@pytest.mark.parametrize("arguments", ["", "[]", "{", '{"command": 5}', '{"command": "ls -l"}', '{"timeout_ms": true}'])
def test_a_shell_call_has_the_types_that_its_client_relies_on(arguments: str) -> None:
    table = ToolTable()
    table.add_all([{"type": "local_shell"}], "tools")
    item = call_item(table.tools[0], CallDelta(index=0, id="call_1", name="local_shell"))
    item.add(arguments)
    list(item.close())
    action = item.item["action"]
    assert action["command"] == (["sh", "-c", "ls -l"] if "ls" in arguments else [])
    assert (action["type"], action["env"], action["timeout_ms"]) == ("exec", {}, None)

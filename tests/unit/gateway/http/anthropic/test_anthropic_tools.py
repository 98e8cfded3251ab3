"""Tools as coding agents send them."""

from typing import Any

import pytest

from common.errors import InvalidRequest
from common.spec.schema_limits import check_schema
from gateway.http.anthropic.bodies import AnthropicTool
from gateway.http.anthropic.tools import OfferedTools, offered_tools

SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}}


def offered(*tools: dict[str, Any]) -> OfferedTools:
    return offered_tools([AnthropicTool.model_validate(tool) for tool in tools])


def function(tool: dict[str, Any]) -> dict[str, Any]:
    (found,) = offered(tool).functions
    assert found["type"] == "function"
    assert isinstance(found["function"], dict)
    return found["function"]


@pytest.mark.parametrize("kind", [{}, {"type": "custom"}, {"type": None}, {"type": "of_next_year"}])
def test_a_tool_with_a_schema_is_a_function(kind: dict[str, Any]) -> None:
    tool = {"name": "look", "description": "Look.", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}}
    assert function(tool | kind) == {"name": "look", "description": "Look.", "parameters": SCHEMA}
    assert function(tool | kind | {"strict": True, "defer_loading": True})["strict"] is True


def test_names_have_up_to_128_characters() -> None:
    name = "mcp__server-of-a-long-name__" + "x" * 100
    assert function({"name": name, "input_schema": SCHEMA})["name"] == name
    for wrong in (name + "x", "a b", ""):
        with pytest.raises(InvalidRequest, match=r"tools\.1\.name: must be 1 to 128 letters, digits, _ and -"):
            offered({"name": "look"}, {"name": wrong, "input_schema": SCHEMA})


@pytest.mark.parametrize(
    "kind",
    [
        "web_search_20250305",
        "web_search_20270101",
        "web_fetch_20260318",
        "code_execution_20250825",
        "tool_search_tool_regex_20251119",
        "tool_search_tool_bm25_20251119",
        "advisor_20260301",
        "mcp_toolset",
        "of_next_year_20270101",
    ],
)
def test_tools_of_the_original_server_are_left_out_and_named(kind: str) -> None:
    found = offered({"type": kind, "name": "x"}, {"name": "look", "input_schema": SCHEMA})
    assert len(found.functions) == 1
    assert found.left_out == (kind,)


@pytest.mark.parametrize(
    ("kind", "name", "fields"),
    [
        ("bash_20250124", "bash", {"command", "restart"}),
        ("text_editor_20250728", "str_replace_based_edit_tool", {"command", "path", "insert_text"}),
        ("text_editor_20250124", "str_replace_editor", {"command", "path", "new_str"}),
        ("memory_20250818", "memory", {"command", "old_path", "new_path"}),
        ("computer_20241022", "computer", {"action", "coordinate"}),
        ("computer_20251124", "computer", {"action", "coordinate", "scroll_direction"}),
    ],
)
def test_tools_that_clients_run_get_the_schema_that_anthropic_defines(kind: str, name: str, fields: set[str]) -> None:
    found = function({"type": kind, "name": name, "display_width_px": 800, "display_height_px": 600})
    assert found["name"] == name
    assert found["description"]
    assert fields <= found["parameters"]["properties"].keys()
    assert found["parameters"]["properties"].keys() >= set(found["parameters"]["required"])
    check_schema(found["parameters"], "tools")


def test_versions_of_a_tool_differ_as_their_clients_do() -> None:
    old = function({"type": "text_editor_20250124", "name": "e"})["parameters"]["properties"]
    new = function({"type": "text_editor_20250728", "name": "e"})["parameters"]["properties"]
    assert "undo_edit" in old["command"]["enum"]
    assert "insert_text" not in old
    assert "undo_edit" not in new["command"]["enum"]
    assert (
        "800 x 600"
        in function({"type": "computer_20250124", "name": "c", "display_width_px": 800, "display_height_px": 600})[
            "description"
        ]
    )


@pytest.mark.parametrize(
    "kind", ["computer_toolset_20260801", "browser_toolset_20260801", "function", "Web Search\r\n"]
)
def test_other_types_are_refused_by_name(kind: str) -> None:
    with pytest.raises(InvalidRequest, match=r"tools\.0: tools of type ") as refused:
        offered({"type": kind, "name": "x"})
    assert kind in refused.value.message

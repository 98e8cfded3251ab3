"""OpenAI's `tool_choice`: the tools that are shown, and those that must be called."""

from typing import Any

import pytest

from common.errors import InvalidRequest
from gateway.core.request.tool_choice import offered_tools, openai_choice, tool_names

TOOLS = [{"type": "function", "function": {"name": name}} for name in ("a", "b", "c")]
OF_CHAT = [{"type": "function", "function": {"name": "b"}}, {"type": "function", "function": {"name": "a"}}]
OF_RESPONSES = [{"type": "function", "name": "b"}, {"type": "function", "name": "a"}]


def allowed(mode: str, tools: Any, *, is_chat: bool) -> dict[str, Any]:
    inner = {"mode": mode, "tools": tools}
    return {"type": "allowed_tools", **({"allowed_tools": inner} if is_chat else inner)}


@pytest.mark.parametrize("is_chat", [True, False])
def test_allowed_tools_in_both_spellings(is_chat: bool) -> None:
    names = OF_CHAT if is_chat else OF_RESPONSES
    required, auto = (allowed(mode, names, is_chat=is_chat) for mode in ("required", "auto"))
    assert openai_choice(required, TOOLS) == ("b", "a")
    assert tool_names(offered_tools(required, TOOLS)) == ("a", "b", "c")
    assert openai_choice(auto, TOOLS) == ()
    assert tool_names(offered_tools(auto, TOOLS)) == ("a", "b")


def test_the_other_choices_show_all_tools_or_none() -> None:
    assert offered_tools("none", TOOLS) == ()
    for choice in (None, "auto", "required", OF_CHAT[0], OF_RESPONSES[0]):
        assert tool_names(offered_tools(choice, TOOLS)) == ("a", "b", "c")


@pytest.mark.parametrize(
    "choice",
    [
        allowed("never", OF_CHAT, is_chat=True),
        allowed("auto", [], is_chat=True),
        allowed("auto", [5], is_chat=False),
        allowed("auto", ["required"], is_chat=False),
        allowed("required", [{"type": "function", "name": "d"}], is_chat=False),
        allowed("required", [allowed("auto", OF_RESPONSES, is_chat=False)], is_chat=False),
        {"type": "allowed_tools"},
        {"type": "allowed_tools", "allowed_tools": 5},
        {"type": "odd"},
    ],
)
def test_what_is_no_choice_is_an_error(choice: Any) -> None:
    with pytest.raises(InvalidRequest) as raised:
        openai_choice(choice, TOOLS)
    assert raised.value.param == "tool_choice"

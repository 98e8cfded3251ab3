"""Messages as coding agents send them, as one conversation."""

from typing import Any

import pytest

from common.errors import InvalidRequest
from gateway.core.request.answers import Message
from gateway.http.anthropic.blocks import BLOCKS_MAX, hidden_signature
from gateway.http.anthropic.bodies import AnthropicMessage
from gateway.http.anthropic.requests import MessagesReader

HELLO = {"role": "user", "content": "hi"}
USE = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "sky"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "blue"}
UNEXPECTED = (
    "messages.1.content.0: unexpected `tool_use_id` found in `tool_result` blocks: toolu_1. "
    "Each `tool_result` block must have a corresponding `tool_use` block in the previous message."
)
PIXEL = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}}
PDF = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "eA=="}}


def conversation(*messages: dict[str, Any], system: Any = None) -> MessagesReader:
    gathered = MessagesReader()
    gathered.add_system(system)
    gathered.add_all([AnthropicMessage.model_validate(message) for message in messages])
    return gathered


def turns(*messages: dict[str, Any], system: Any = None) -> list[Message]:
    return conversation(*messages, system=system).messages


def said(*blocks: Any, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


def text(content: str) -> dict[str, str]:
    return {"type": "text", "text": content}


def refusal(*messages: dict[str, Any]) -> str:
    with pytest.raises(InvalidRequest) as refused:
        turns(*messages)
    assert refused.value.param == "messages"
    return refused.value.message


# System messages.


def test_a_system_message_before_the_first_answer_joins_the_system_text() -> None:
    found = turns(HELLO, {"role": "system", "content": [text("Agents: one")]}, system="Be kind.")
    assert [(m.role, m.content) for m in found] == [("system", "Be kind.\n\nAgents: one"), ("user", "hi")]


def test_a_later_system_message_is_a_turn_in_its_place() -> None:
    answer = {"role": "assistant", "content": "yes"}
    found = turns(HELLO, answer, HELLO, {"role": "system", "content": "Be brief."}, system="Be kind.")
    assert [m.role for m in found] == ["system", "user", "assistant", "user", "system"]
    assert found[-1].content == "Be brief."


def test_a_system_message_for_one_question_is_gone_after_the_next() -> None:
    note = {"role": "system", "content": "9 tokens left", "clear_at": "next_user_message"}
    answer = {"role": "assistant", "content": "yes"}
    assert "9 tokens left" in turns(HELLO, answer, HELLO, note)[-1].content
    assert [m.role for m in turns(HELLO, answer, HELLO, note, answer, HELLO)] == [
        *("user", "assistant", "user", "assistant", "user"),
    ]


def test_a_system_message_may_change_the_tools() -> None:
    definition = {"name": "jump", "input_schema": {"type": "object"}}
    changes = said(
        {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": definition}},
        {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "look"}},
        {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "look"}},
        role="system",
    )
    found = conversation(HELLO, changes)
    assert [tool.name for tool in found.added_tools] == ["jump"]
    assert found.ignored == ["tool_removal"]
    assert [m.role for m in found.messages] == ["user"]


@pytest.mark.parametrize("header", ["cc_version=2.1.197.3d9; cc_entrypoint=cli; cch=36ee5;", "cc_version=2.1.29.1;"])
@pytest.mark.parametrize("behind", ["", "\n"])
def test_the_billing_header_that_changes_with_every_request_is_taken_away(header: str, behind: str) -> None:
    blocks = [text(f"x-anthropic-billing-header: {header}{behind}"), text("You are an agent.")]
    assert turns(HELLO, system=blocks)[0].content == "You are an agent."
    joined = f"x-anthropic-billing-header: {header}{behind}You are an agent."
    assert turns(HELLO, system=joined)[0].content == "You are an agent."
    assert turns(HELLO, system=f"Never say {joined}")[0].content == f"Never say {joined}"


# Turns.


def test_neighbours_of_one_role_are_one_turn() -> None:
    found = turns(HELLO, said(text("and?")), said(text("yes"), role="assistant"), said(USE, role="assistant"))
    assert [(m.role, m.content) for m in found] == [("user", "hi\nand?"), ("assistant", "yes")]
    assert [call.name for call in found[1].tool_calls] == ["look"]


def test_results_stand_before_the_text_beside_them_under_the_id_of_the_call() -> None:
    found = turns(HELLO, said(USE, role="assistant"), said(text("well?"), RESULT))
    assert [(m.role, m.content) for m in found[2:]] == [("tool", "blue"), ("user", "well?")]
    assert found[1].tool_calls[0].id == found[2].tool_call_id == "call_1"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({}, ""),
        ({"content": None}, ""),
        ({"content": []}, ""),
        ({"content": "blue", "is_error": True}, "Error: blue"),
        ({"content": [text("a"), text(""), text("b")]}, "a\nb"),
        ({"content": [{"type": "tool_reference", "tool_name": "jump"}]}, "jump"),
        ({"content": [{"type": "document", "title": "T", "source": {"type": "text", "data": "x"}}]}, "T\nx"),
        ({"content": [{"type": "search_result", "title": "T", "source": "s", "content": [text("x")]}]}, "T\ns\nx"),
    ],
)
def test_results_have_any_content(content: dict[str, Any], expected: str) -> None:
    result = {"type": "tool_result", "tool_use_id": "toolu_1", **content}
    assert turns(HELLO, said(USE, role="assistant"), said(result))[-1].content == expected


def test_an_image_in_a_result_stands_where_it_is() -> None:
    result = RESULT | {"content": [text("ab"), PIXEL, text("c")]}
    message = turns(HELLO, said(USE, role="assistant"), said(result))[-1]
    assert (message.content, message.images[0].offset) == ("abc", 2)


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ({"type": "redacted_thinking", "data": "x"}, ""),
        ({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}}, ""),
        (
            {
                "type": "web_search_tool_result",
                "tool_use_id": "s",
                "content": [{"type": "web_search_result", "title": "T", "url": "u", "encrypted_content": "x"}],
            },
            "T\nu",
        ),
        (
            {
                "type": "web_fetch_tool_result",
                "content": {
                    "type": "web_fetch_result",
                    "url": "u",
                    "content": {"type": "document", "source": {"type": "text", "data": "page"}},
                },
            },
            "u\npage",
        ),
        ({"type": "code_execution_tool_result", "content": {"stdout": "4", "stderr": "", "return_code": 0}}, "4"),
        ({"type": "mcp_tool_result", "tool_use_id": "m", "content": [text("found")]}, "found"),
        ({"type": "compaction", "content": "Before: much."}, "Before: much."),
        ({"type": "container_upload", "file_id": "f"}, ""),
        ({"type": "of_next_year", "anything": 1}, ""),
    ],
)
def test_parts_of_an_earlier_answer_count_as_their_text(block: dict[str, Any], expected: str) -> None:
    message = turns(HELLO, said(block, text("so"), role="assistant"))[-1]
    assert message.content == "\n".join(part for part in (expected, "so") if part)


@pytest.mark.parametrize("signature", [None, "", "EqQBCgIYAhIM", "puna"])
def test_thinking_comes_back_whatever_its_signature(signature: str | None) -> None:
    block = {"type": "thinking", "thinking": "hmm", "signature": signature}
    assert turns(HELLO, said(block, text("yes"), role="assistant"))[-1].thinking == "hmm"


@pytest.mark.parametrize(
    ("signature", "expected"),
    [(hidden_signature("hm\u00e4"), "hm\u00e4"), ("puna.%%%", ""), ("EqQBCgIYAhIM", ""), ("puna.//8=", "")],
)
def test_thinking_that_was_not_shown_comes_back_in_its_signature(signature: str, expected: str) -> None:
    block = {"type": "thinking", "thinking": "", "signature": signature}
    assert turns(HELLO, said(block, text("yes"), role="assistant"))[-1].thinking == expected


@pytest.mark.parametrize("content", ["", [], [text("")]])
def test_an_answer_may_begin_with_nothing(content: Any) -> None:
    assert turns(HELLO, {"role": "assistant", "content": content})[-1] == Message(role="assistant")


def test_a_call_without_a_result_is_taken() -> None:
    assert [m.role for m in turns(HELLO, said(USE, role="assistant"), HELLO)] == ["user", "assistant", "user"]


@pytest.mark.parametrize("arguments", [None, "{not json", {}])
def test_arguments_of_a_call_may_be_missing_or_broken(arguments: Any) -> None:
    block = USE | {"input": arguments}
    assert turns(HELLO, said(block, role="assistant"))[-1].tool_calls[0].arguments == (arguments or {})


# Refusals name the place.


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([HELLO, {"role": "wizard", "content": "x"}], 'messages.1.role: "wizard" must be user, assistant or system'),
        ([{"role": "user"}], f"messages.0: content must be a string or at most {BLOCKS_MAX} blocks"),
        (
            [said(*[text("x")] * (BLOCKS_MAX + 1))],
            f"messages.0: content must be a string or at most {BLOCKS_MAX} blocks",
        ),
        ([HELLO, said(text("x"), 5)], "messages.1.content.1: content blocks must be objects with a type"),
        (
            [said({"type": "video"})],
            "messages.0.content.0: content blocks of type video are not supported in a user turn",
        ),
        (
            [said({"type": "container_upload", "file_id": "f"})],
            "messages.0.content.0: content blocks of type container_upload are not supported in a user turn",
        ),
        ([said(USE)], "messages.0.content.0: content blocks of type tool_use are not supported in a user turn"),
        ([said(PDF)], "messages.0.content.0: documents must have a source of type text or content"),
        (
            [said(USE, role="assistant"), said(RESULT | {"content": [text("x"), {"type": "video"}]})],
            "messages.1.content.0.content.1: content blocks of type video are not supported in a tool turn",
        ),
        (
            [said({"type": "image", "source": {"type": "file", "file_id": "f"}})],
            "messages.0.content.0: images must have a base64 source",
        ),
        (
            [said(USE | {"input": 5}, role="assistant")],
            "messages.0.content.0: a block of type tool_use must have id, name and an object as input",
        ),
        ([said({"type": "tool_result", "content": "x"})], "messages.0.content.0.tool_use_id: must be of type string"),
        (
            [HELLO, said(USE, role="assistant"), said(RESULT), said(USE, role="assistant")],
            "messages.3.content.0: `tool_use` ids must be unique",
        ),
        (
            [HELLO, said(RESULT)],
            UNEXPECTED,
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_place(messages: list[dict[str, Any]], expected: str) -> None:
    assert refusal(*messages) == expected

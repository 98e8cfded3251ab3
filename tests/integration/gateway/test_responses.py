"""Responses API through a real gateway: tools of every type, items of every type, and the routes below it."""

import json
import re
from typing import Any

import pytest
from openai.types.responses import CompactedResponse, Response, ResponseStreamEvent
from pydantic import TypeAdapter

from protos import runner_pb2
from tests.integration.gateway import scripted
from tests.integration.gateway.conftest import Cluster, StartCluster

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
PATCH_GRAMMAR = """start: begin change+ end
begin: "*** Begin" LF
change: "+" /(.*)/ LF -> line
end: "*** End" LF?

%import common.LF
"""
PATCH = '*** Begin\n+say "hi" \\o/ ünï 😀\n*** End\n'
FUNCTION = {"type": "function", "name": "run", "parameters": {"type": "object", "properties": {}}, "strict": False}
CUSTOM = {
    "type": "custom",
    "name": "edit",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": PATCH_GRAMMAR},
}
NAMESPACE = {
    "type": "namespace",
    "name": "team",
    "description": "Other agents.",
    "tools": [{"type": "function", "name": "ask", "parameters": {"type": "object", "properties": {}}}],
}


def call(name: str, arguments: object) -> str:
    return json.dumps({"name": name, "arguments": arguments})


async def asked(cluster: Cluster, pieces: list[str], **body: Any) -> Any:
    """The whole response; the runner answers with these pieces."""
    cluster.runner.pieces = pieces
    answer = await cluster.http.post("/v1/responses", json={"model": "demo", "input": "x", **body})
    assert answer.status_code == 200, answer.text
    return Response.model_validate(answer.json())


async def streamed(cluster: Cluster, pieces: list[str], **body: Any) -> list[Any]:
    cluster.runner.pieces = pieces
    sent = {"model": "demo", "input": "x", "stream": True, **body}
    answer = await cluster.http.post("/v1/responses", json=sent)
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    events = [EVENT.validate_python(json.loads(line)) for line in lines]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    return events


def prompt_of(request: runner_pb2.GenerateRequest) -> str:
    return "".join(segment.text or segment.literal for segment in request.prompt)


async def test_a_call_of_a_namespace_has_its_own_name_again(cluster: Cluster) -> None:
    answer = await asked(cluster, [call("team__ask", {"who": "you"})], tools=[FUNCTION, NAMESPACE])
    (item,) = answer.output
    assert (item.type, item.name, item.namespace) == ("function_call", "ask", "team")
    assert json.loads(item.arguments) == {"who": "you"}
    assert "Other agents." in prompt_of(cluster.runner.requests[0])


@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_free_text_is_streamed_as_the_text_that_it_is(cluster: Cluster, size: int) -> None:
    text = call("edit", {"input": PATCH})
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    events = await streamed(cluster, pieces, tools=[CUSTOM])
    deltas = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == PATCH
    (done,) = [event for event in events if event.type == "response.custom_tool_call_input.done"]
    assert done.input == PATCH
    (item,) = events[-1].response.output
    assert (item.type, item.name, item.input) == ("custom_tool_call", "edit", PATCH)
    kinds = [event.type for event in events if not event.type.endswith("delta")]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.custom_tool_call_input.done",
        "response.output_item.done",
        "response.completed",
    ]


async def test_a_forced_call_is_held_to_the_grammar_of_its_input(cluster: Cluster) -> None:
    body = {"tools": [FUNCTION, CUSTOM], "tool_choice": {"type": "custom", "name": "edit"}}
    cluster.runner.pieces = [call("edit", {"input": PATCH})]
    answer = await cluster.http.post("/v1/responses", json={"model": "demo", "input": "x", **body})
    assert "x-puna-ignored" not in answer.headers
    (request,) = cluster.runner.requests
    (schema,) = request.grammar_schemas.values()
    pattern = json.loads(schema)["properties"]["input"]["pattern"]
    assert re.fullmatch(pattern, PATCH)
    assert not re.fullmatch(pattern, PATCH.replace("+", "-"))


@pytest.mark.parametrize(
    ("tools", "choice", "ignored"),
    [
        ([FUNCTION, CUSTOM], "auto", "tools[1].format"),
        ([{**CUSTOM, "format": {"type": "grammar", "syntax": "lark", "definition": "start: start"}}], "required",
         "tools[0].format"),
        ([FUNCTION, {"type": "web_search"}, {"type": "never heard\nof: it"}], "auto",
         "tools[1].web_search, tools[2].never_heard_of:_it"),
        ([FUNCTION, {"type": "shell", "environment": {"type": "container_auto"}}], "auto", "tools[1].shell"),
        ([FUNCTION, FUNCTION], "auto", "tools[1].run"),
        ([{**NAMESPACE, "tools": [*NAMESPACE["tools"], {"type": "odd"}]}], "auto", "tools[0].tools[1].odd"),
    ],
)  # fmt: skip
async def test_what_is_not_held_or_not_run_is_named(
    cluster: Cluster, tools: list[Any], choice: str, ignored: str
) -> None:
    body = {"model": "demo", "input": "x", "tools": tools, "tool_choice": choice}
    answer = await cluster.http.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-puna-ignored"] == ignored


async def test_a_format_is_named_where_the_model_writes_no_json(
    start_cluster: StartCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    tagged = f"{{# <tool_call><function= #}}{scripted.TEMPLATE}"
    monkeypatch.setattr(scripted, "TEMPLATE", tagged)
    async with start_cluster() as cluster:
        body = {"model": "demo", "input": "x", "tools": [CUSTOM], "tool_choice": "required"}
        answer = await cluster.http.post("/v1/responses", json=body)
    assert answer.headers["x-puna-ignored"] == "tools[0].format"


SHELLS = [
    ({"type": "local_shell"}, {"command": ["ls", "-l"], "timeout_ms": 5}, "local_shell_call"),
    ({"type": "shell"}, {"commands": ["ls", "pwd"]}, "shell_call"),
    ({"type": "apply_patch"}, {"type": "create_file", "path": "a", "diff": "+x"}, "apply_patch_call"),
]


@pytest.mark.parametrize(("tool", "arguments", "kind"), SHELLS)
async def test_tools_that_the_client_runs_are_called_in_their_own_form(
    cluster: Cluster, tool: Any, arguments: dict[str, Any], kind: str
) -> None:
    pieces = [call(tool["type"], arguments)]
    whole = (await asked(cluster, pieces, tools=[tool])).output
    events = await streamed(cluster, pieces, tools=[tool])
    (item,), (streamed_item,) = whole, events[-1].response.output
    assert item.type == kind
    wanted = item.operation if kind == "apply_patch_call" else item.action
    assert arguments.items() <= wanted.model_dump().items()
    without_ids = {"id", "call_id"}
    assert item.model_dump(exclude=without_ids) == streamed_item.model_dump(exclude=without_ids)
    # The call and its result are understood again.
    output: Any = {"type": f"{kind}_output", "call_id": item.call_id, "output": "text", "status": "completed"}
    if kind == "shell_call":
        output["output"] = [{"stdout": "out", "stderr": "", "outcome": {"type": "exit", "exit_code": 3}}]
    history = [{"role": "user", "content": "x"}, item.model_dump(), output]
    await asked(cluster, ["done"], tools=[tool], input=history)
    assert ("(exit code 3)" if kind == "shell_call" else "text") in prompt_of(cluster.runner.requests[-1])


async def test_a_search_for_tools_is_the_clients_and_what_it_finds_can_be_called(cluster: Cluster) -> None:
    search = {"type": "tool_search", "execution": "client", "description": "Finds tools.",
              "parameters": {"type": "object", "properties": {"query": {"type": "string"}}}}  # fmt: skip
    (item,) = (await asked(cluster, [call("tool_search", {"query": "ask"})], tools=[search])).output
    assert (item.type, item.execution, item.arguments) == ("tool_search_call", "client", {"query": "ask"})
    found = {"type": "tool_search_output", "call_id": item.call_id, "execution": "client", "tools": [NAMESPACE]}
    history = [{"role": "user", "content": "x"}, item.model_dump(), found]
    (called,) = (await asked(cluster, [call("team__ask", {})], tools=[search], input=history)).output
    assert (called.name, called.namespace) == ("ask", "team")
    assert '{"tools":["team__ask"]}' in prompt_of(cluster.runner.requests[-1])


async def test_tools_of_an_item_are_offered(cluster: Cluster) -> None:
    added = {"type": "additional_tools", "role": "developer", "tools": [{**NAMESPACE, "tools": [CUSTOM]}]}
    pieces = [call("team__edit", {"input": "x"})]
    (item,) = (await asked(cluster, pieces, input=[added, {"role": "user", "content": "x"}])).output
    assert (item.type, item.name, item.namespace, item.input) == ("custom_tool_call", "edit", "team", "x")


@pytest.mark.parametrize(
    ("choice", "forced", "shown"),
    [
        ({"mode": "auto", "tools": [{"type": "function", "name": "run"}]}, [], ["run"]),
        ({"mode": "required", "tools": [{"type": "custom", "name": "edit"}]}, ["edit"], ["run", "edit", "team__ask"]),
        ({"mode": "required", "tools": [{"type": "function", "name": "ask"}, {"type": "web_search"}]},
         ["team__ask"], ["run", "edit", "team__ask"]),
    ],
)  # fmt: skip
async def test_allowed_tools(cluster: Cluster, choice: Any, forced: list[str], shown: list[str]) -> None:
    tools = [FUNCTION, CUSTOM, NAMESPACE, {"type": "web_search"}]
    await asked(cluster, ["x"], tools=tools, tool_choice={"type": "allowed_tools", **choice})
    (request,) = cluster.runner.requests
    assert len(request.grammar_schemas) == len(forced)
    prompt = prompt_of(request)
    for name in ("run", "edit", "team__ask"):
        assert (f'"name": "{name}"' in prompt or f'"name":"{name}"' in prompt) is (name in shown)


async def test_allowed_tools_of_chat_completions(cluster: Cluster) -> None:
    functions = [{"type": "function", "function": {"name": name}} for name in ("run", "ask")]
    body = {"model": "demo", "messages": [{"role": "user", "content": "x"}], "tools": functions}
    for mode in ("auto", "required"):
        choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": functions[:1]}}
        answer = await cluster.http.post("/v1/chat/completions", json={**body, "tool_choice": choice})
        assert answer.status_code == 200, answer.text
    auto, required = cluster.runner.requests
    assert ('"run"' in prompt_of(auto), '"ask"' in prompt_of(auto)) == (True, False)
    assert ('"run"' in prompt_of(required), '"ask"' in prompt_of(required)) == (True, True)
    assert (len(auto.grammar_schemas), len(required.grammar_schemas)) == (0, 1)


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "web_search"},
        {"type": "mcp", "server_label": "x"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]},
        "required",
    ],
)
async def test_a_forced_tool_that_is_not_run_here_is_an_error_that_names_it(cluster: Cluster, choice: Any) -> None:
    body = {"model": "demo", "input": "x", "tools": [{"type": "web_search"}], "tool_choice": choice}
    answer = await cluster.http.post("/v1/responses", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "tool_choice"
    assert ("mcp" if choice == {"type": "mcp", "server_label": "x"} else "web_search") in error["message"]


USER = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]}
CALL = {"type": "function_call", "call_id": "call_1", "name": "run", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "call_1", "output": "ok"}


async def test_items_of_every_type_are_taken(cluster: Cluster) -> None:
    items = [
        USER,
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c1", "name": "edit", "input": PATCH},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "applied"}]},
        {**CALL, "name": "ask", "namespace": "team"},
        RESULT,
        {"type": "local_shell_call", "id": "lsh_1", "call_id": "c2", "status": "completed",
         "action": {"type": "exec", "command": ["ls"], "env": {}}},
        {"type": "local_shell_call_output", "id": "lsh_1", "output": "files"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
        {"type": "mcp_call", "id": "mcp_1", "server_label": "docs", "name": "find", "arguments": "{}",
         "output": "page"},
        {"type": "code_interpreter_call", "id": "ci_1", "code": "1+1", "container_id": "c", "status": "completed",
         "outputs": [{"type": "logs", "logs": "two"}]},
        {"type": "item_reference", "id": "rs_1"},
        {"type": "compaction", "id": "cmp_1", "encrypted_content": "of another server"},
        {"type": "additional_tools", "role": "developer", "tools": [FUNCTION]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "so far", "annotations": []}]},
        {"role": "developer", "content": "Be brief."},
        USER,
    ]  # fmt: skip
    body = {"model": "demo", "input": items, "tools": [CUSTOM, NAMESPACE]}
    answer = await cluster.http.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    prompt = prompt_of(cluster.runner.requests[0])
    for text in ("applied", "files", "page", "two", "so far", "Be brief."):
        assert text in prompt
    names = "input[11].item_reference:rs_1, input[12].compaction, input[8].web_search_call, tools[0].format"
    assert answer.headers["x-puna-ignored"] == names


@pytest.mark.parametrize(
    ("items", "param", "text"),
    [
        ([USER, {"type": "jump"}], "input[1]", "items of type jump are not supported"),
        ([USER, 5], "input[1]", "must be an object"),
        ([{"no": "type"}], "input[0]", "no item with a type"),
        ([USER, RESULT], "input", "No tool call found for function call output with call_id call_1."),
        ([USER, {**RESULT, "type": "custom_tool_call_output"}], "input",
         "No tool call found for custom tool call output with call_id call_1."),
        ([USER, CALL], "input", "No tool output found for function call call_1."),
        ([USER, CALL, RESULT, RESULT], "input[3]", "has a result already"),
        ([USER, CALL, CALL, RESULT], "input[2]", "that of an earlier call"),
        ([{**USER, "id": "msg_1"}, {**USER, "id": "msg_1"}], "input", "Duplicate item found with id msg_1."),
        ([USER, {**CALL, "arguments": {}}], "input[1]", "input[1].arguments must be a string"),
        ([USER, CALL, {**RESULT, "output": None}], "input[2]", "must have a string or parts"),
        ([{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}], "input[0]", "of type input_file"),
        ([{"role": "user"}], "input[0]", "must have a string or parts"),
        ([{"role": "tool", "content": "x"}], "input[0]", "invalid message role"),
        ([], "input", "1 to 2048 items"),
        (None, "input", "input is required"),
    ],
)  # fmt: skip
async def test_bad_items_are_named(cluster: Cluster, items: Any, param: str, text: str) -> None:
    for path in ("", "/input_tokens", "/compact"):
        answer = await cluster.http.post(f"/v1/responses{path}", json={"model": "demo", "input": items})
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert (error["type"], error["param"]) == ("invalid_request_error", param)
        assert text in error["message"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0]"),
        ({"tools": [{"name": "x"}]}, "tools[0]"),
        ({"tools": [{"type": "namespace", "name": "x"}]}, "tools[0]"),
        ({"tools": [{**CUSTOM, "format": "lark"}]}, "tools[0]"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "custom", "name": "run"}}, "tool_choice"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "allowed_tools", "mode": "odd", "tools": []}}, "tool_choice"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [5]}}, "tool_choice"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": [FUNCTION], "tool_choice": 5}, "tool_choice"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"reasoning": {"summary": 5}}, "reasoning.summary"),
        ({"input": [{"type": "additional_tools", "tools": 5}]}, "input[0].tools"),
    ],
)
async def test_bad_fields_are_named(cluster: Cluster, change: dict[str, Any], param: str) -> None:
    answer = await cluster.http.post("/v1/responses", json={"model": "demo", "input": "x", **change})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


async def test_what_the_request_said_is_said_again(cluster: Cluster) -> None:
    said = {
        "reasoning": {"effort": "none", "summary": "auto"},
        "text": {"verbosity": "low"},
        "max_tool_calls": 3,
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "top_logprobs": 2,
        "service_tier": "priority",
        "context_management": [{"type": "compaction", "compact_threshold": 9}],
    }
    cluster.runner.pieces = ["x"]
    answer = await cluster.http.post("/v1/responses", json={"model": "demo", "input": "x", **said})
    found = Response.model_validate(answer.json())
    assert found.reasoning is not None
    assert (found.reasoning.effort, found.reasoning.summary) == ("none", "auto")
    assert found.text is not None
    assert found.text.verbosity == "low"
    assert (found.max_tool_calls, found.safety_identifier, found.prompt_cache_key) == (3, "s", "k")
    assert (found.top_logprobs, found.service_tier) == (2, "default")
    assert answer.headers["x-puna-ignored"] == "context_management, service_tier, text.verbosity"


async def test_input_tokens_counts_the_prompt_of_an_answer(cluster: Cluster) -> None:
    body = {"model": "demo", "input": [USER], "instructions": "Be brief.", "tools": [CUSTOM, NAMESPACE]}
    count = await cluster.http.post("/v1/responses/input_tokens", json=body)
    answer = await cluster.http.post("/v1/responses", json=body)
    assert count.json() == {
        "object": "response.input_tokens",
        "input_tokens": answer.json()["usage"]["input_tokens"],
    }


async def test_a_compacted_conversation_goes_on_from_its_summary(cluster: Cluster) -> None:
    cluster.runner.pieces = ["The user wants", " a port."]
    long = {"type": "message", "role": "user", "content": "y" * 20_000}
    items = [{"role": "developer", "content": "Be brief."}, long, USER, CALL, RESULT]
    answer = await cluster.http.post("/v1/responses/compact", json={"model": "demo", "input": items})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["object"] == "response.compaction"
    assert [item["type"] for item in found["output"]] == ["message", "message", "compaction"]
    assert [item.get("role") for item in found["output"]] == ["developer", "user", None]
    CompactedResponse.model_validate(found | {"output": found["output"][-1:]})
    (request,) = cluster.runner.requests
    assert request.truncate
    assert request.shift
    await asked(cluster, ["x"], input=[*found["output"], USER])
    assert "The user wants a port." in prompt_of(cluster.runner.requests[-1])


async def test_a_trigger_makes_the_answer_a_compaction(cluster: Cluster) -> None:
    items = [USER, {"type": "compaction_trigger"}]
    events = await streamed(cluster, ["A summary."], input=items, tools=[FUNCTION])
    kinds = [event.type for event in events]
    assert kinds[2:] == ["response.output_item.added", "response.output_item.done", "response.completed"]
    (item,) = events[-1].response.output
    assert item.type == "compaction"
    await asked(cluster, ["x"], input=[item.model_dump(), USER])
    assert "A summary." in prompt_of(cluster.runner.requests[-1])


async def test_a_summary_that_is_empty_is_an_error(cluster: Cluster) -> None:
    cluster.runner.pieces = [" "]
    answer = await cluster.http.post("/v1/responses/compact", json={"model": "demo", "input": "x"})
    assert answer.status_code == 400
    assert "no summary" in answer.json()["error"]["message"]
    sent = {"model": "demo", "input": [USER, {"type": "compaction_trigger"}], "stream": True}
    stream = await cluster.http.post("/v1/responses", json=sent)
    if stream.status_code == 400:  # the whole answer came before the status line was written
        assert "no summary" in stream.json()["error"]["message"]
    else:
        assert [line for line in stream.text.splitlines() if line.startswith("event: ")][-1] == "event: response.failed"

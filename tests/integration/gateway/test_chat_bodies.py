"""Bodies of /v1/chat/completions as clients really send them: odd, incomplete, or meant for another server."""

from typing import Any

import pytest

from tests.integration.gateway.conftest import Cluster, StartCluster
from tests.integration.gateway.scripted import MODEL_NAME, ScriptedScheduler, scripted_model

CHAT = "/v1/chat/completions"
TALK: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
SEARCH = {"type": "web_search"}
CUSTOM = {"type": "custom", "custom": {"name": "patch", "format": {"type": "text"}}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
SHOWS_CALLS = (
    "{% if tools %}{% endif %}{% for m in messages %}{% for c in m.tool_calls or [] %}"
    "[{{ c.function.name }}|{{ c.function.arguments | tojson }}]{% endfor %}{{ m.content }}{% endfor %}"
)


def called(*calls: dict[str, Any]) -> list[dict[str, Any]]:
    """A conversation in which an assistant made these calls."""
    results = [{"role": "tool", "tool_call_id": call.get("id"), "content": "ok"} for call in calls]
    return [*TALK, {"role": "assistant", "content": None, "tool_calls": list(calls)}, *results]


async def asked(cluster: Cluster, /, path: str = CHAT, **body: Any) -> Any:
    """Return the request that the runner received."""
    prompt: dict[str, Any] = {"messages": TALK} if path == CHAT else {"prompt": "hi"}
    answer = await cluster.http.post(path, json={"model": "demo"} | prompt | body)
    assert answer.status_code == 200, answer.text
    return cluster.runner.requests[-1]


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_minus_one_is_no_limit(cluster: Cluster, path: str) -> None:
    assert not (await asked(cluster, path, max_tokens=-1)).HasField("max_tokens")
    assert (await asked(cluster, path, max_tokens=2)).max_tokens == 2
    if path == CHAT:
        assert not (await asked(cluster, path, max_completion_tokens=-1)).HasField("max_tokens")
    for wrong in (0, -2):
        answer = await cluster.http.post(
            path, json={"model": "demo", "messages": TALK, "prompt": "x", "max_tokens": wrong}
        )
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "max_tokens")


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_fields_of_vllm_hold_the_answer_to_their_form(cluster: Cluster, path: str) -> None:
    text = '{"type":"object","properties":{"a":{"type":"integer"}}}'
    assert (await asked(cluster, path, guided_json=SCHEMA)).json_schema == text
    assert (await asked(cluster, path, structured_outputs={"json": SCHEMA})).json_schema == text
    assert (await asked(cluster, path, guided_choice=["a"])).grammar == 'root ::= "\\U00000061"'
    both = {"guided_choice": ["a"], "grammar": 'root ::= "b"'}
    answer = await cluster.http.post(path, json={"model": "demo", "messages": TALK, "prompt": "x"} | both)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "guided_choice")


async def test_what_cannot_be_obeyed_is_named_in_a_header(cluster: Cluster) -> None:
    body = {
        "guided_regex": "a+",
        "web_search_options": {"search_context_size": "low"},
        "verbosity": "low",
        "store": True,
        "ignore_eos": True,
        "min_tokens": 0,
        "metadata": {"a": "b"},
        "service_tier": "auto",
        "prediction": {"type": "content", "content": "x"},
        "nvext": {"ignore_eos": True},
    }
    answer = await cluster.http.post(CHAT, json={"model": "demo", "messages": TALK, **body})
    assert answer.status_code == 200
    assert answer.headers["x-puna-ignored"] == "guided_regex, ignore_eos, store, verbosity, web_search_options"
    plain = await cluster.http.post(CHAT, json={"model": "demo", "messages": TALK, "store": False})
    assert "x-puna-ignored" not in plain.headers


async def test_tools_that_a_server_would_run_are_dropped_and_named(cluster: Cluster) -> None:
    answer = await cluster.http.post(
        CHAT, json={"model": "demo", "messages": TALK, "tools": [SEARCH, LOOK, CUSTOM], "tool_choice": "auto"}
    )
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-puna-ignored"] == "tools[0].web_search, tools[2].custom"
    for choice in ({"type": "custom", "custom": {"name": "patch"}}, {"type": "web_search"}):
        refused = await cluster.http.post(
            CHAT, json={"model": "demo", "messages": TALK, "tools": [LOOK, CUSTOM], "tool_choice": choice}
        )
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tool_choice")
    alone = await cluster.http.post(
        CHAT, json={"model": "demo", "messages": TALK, "tools": [CUSTOM], "tool_choice": "required"}
    )
    assert (alone.status_code, alone.json()["error"]["param"]) == (400, "tool_choice")


async def test_a_model_without_tools_answers_beside_dropped_ones(start_cluster: StartCluster) -> None:
    scheduler = ScriptedScheduler(models={MODEL_NAME: scripted_model(capabilities=["completion"])})
    async with start_cluster(scheduler=scheduler) as cluster:
        await asked(cluster, tools=[SEARCH])


async def test_null_is_absent_everywhere(cluster: Cluster) -> None:
    fields = (
        "tools", "tool_choice", "stop", "response_format", "stream_options", "stream", "max_tokens", "logit_bias",
        "logprobs", "top_logprobs", "n", "seed", "user", "functions", "audio", "modalities", "parallel_tool_calls",
        "reasoning_effort", "guided_json", "structured_outputs", "metadata",
    )  # fmt: skip
    message = {"role": "user", "content": "hi", "name": None, "tool_calls": None, "tool_call_id": None, "refusal": None}
    absent: dict[str, Any] = dict.fromkeys(fields)
    await asked(cluster, CHAT, messages=[message], **absent)


@pytest.mark.parametrize("arguments", ["", "  ", "{}", {}, None])
async def test_a_call_without_parameters_comes_back_as_an_empty_object(
    start_cluster: StartCluster, arguments: object
) -> None:
    scheduler = ScriptedScheduler(models={MODEL_NAME: scripted_model(chat_template=SHOWS_CALLS)})
    async with start_cluster(scheduler=scheduler) as cluster:
        call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": arguments}}
        request = await asked(cluster, messages=called(call), tools=[LOOK])
    assert "|{}]" in "".join(segment.text or segment.literal for segment in request.prompt)


def _call(id_: str = "c1", **function: Any) -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": "look", "arguments": "{}"} | function}


@pytest.mark.parametrize(
    "messages",
    [
        called(_call(), _call()),  # two calls of one id
        called(_call(arguments="no json")),
        called({"function": {"name": "look", "arguments": "{}"}}),  # neither id nor type
        [*TALK, {"role": "assistant", "content": None}, *TALK],
        [*TALK, {"role": "assistant", "content": "", "tool_calls": []}, *TALK],
        [{"role": "user", "content": []}],
        [{"role": "user", "content": [{"type": "text", "text": ""}, {"type": "input_text", "text": "hi"}]}],
        [{"role": "user", "content": "hi", "name": "Ada Lovelace"}],
        [{"role": "developer", "content": "Be brief."}, *TALK],
        [*TALK, {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, *TALK],
    ],
)
async def test_what_agents_send_oddly_is_answered(cluster: Cluster, messages: list[dict[str, Any]]) -> None:
    await asked(cluster, messages=messages, tools=[LOOK])


def _part(**part: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "text", "text": "x"}, part]}]


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        (_part(type="input_audio", input_audio={}), 'messages[0].content[1] is of type "input_audio"'),
        (_part(type="file", file={"file_data": "x"}), 'messages[0].content[1] is of type "file"'),
        (_part(type="video_url", video_url={"url": "x"}), 'messages[0].content[1] is of type "video_url"'),
        (_part(type="text"), "messages[0].content[1] must have a text"),
        (_part(type="image_url", image_url=None), "messages[0].content[1] must have a text"),
        (_part(text="x"), "messages[0].content[1] must have a text"),
        ([{"role": "function", "name": "look", "content": "ok"}], 'invalid message role: "function"'),
        ([{"role": "user", "content": None}], "messages[0] has none"),
        ([*TALK, {"role": "tool", "tool_call_id": "c1", "content": "ok"}], "must follow a call of it"),
        (called({"id": "c1", "type": "custom", "custom": {"name": "p", "input": "x"}}), "messages[1].tool_calls[0]"),
        (called(_call(arguments=5)), "messages[1].tool_calls[0]"),
    ],
)
async def test_what_cannot_be_read_is_a_400_that_says_where(
    cluster: Cluster, messages: list[dict[str, Any]], words: str
) -> None:
    answer = await cluster.http.post(CHAT, json={"model": "demo", "messages": messages, "tools": [LOOK]})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_value", "messages")
    assert words in error["message"]

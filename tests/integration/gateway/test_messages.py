"""POST /v1/messages as coding agents send it: what reaches the runner, and what the answer says."""

import json
from typing import Any

import anthropic
import httpx

from tests.integration.gateway.conftest import Cluster, StartCluster
from tests.integration.gateway.scripted import MODEL_NAME, ScriptedRunner, ScriptedScheduler, scripted_model

HELLO = {"role": "user", "content": "hi"}
BODY = {"model": "demo", "max_tokens": 9, "messages": [HELLO]}
LOOK = {"name": "look", "input_schema": {"type": "object", "properties": {"at": {"type": "string"}}}}
SCHEMA = {"type": "object", "properties": {"sky": {"type": "string"}}, "required": ["sky"]}
FORM = {"type": "json_schema", "schema": SCHEMA}
THINKING_TEMPLATE = "{% for m in messages %}{{ m.content }}{{ m.thinking }}{% endfor %}<think></think>"


async def asked(cluster: Cluster, **more: Any) -> httpx.Response:
    answer = await cluster.http.post("/v1/messages", json=BODY | more)
    assert answer.status_code == 200, answer.text
    return answer


def prompt(cluster: Cluster) -> str:
    return "".join(segment.text or segment.literal for segment in cluster.runner.requests[-1].prompt)


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]


async def test_a_system_message_behind_the_question_is_read_and_counted(cluster: Cluster) -> None:
    note = {"role": "system", "content": [{"type": "text", "text": "Agents: one"}]}
    await asked(cluster, system="Be kind.", messages=[HELLO, note])
    assert prompt(cluster).startswith("<s><|im_start|>system\nBe kind.\n\nAgents: one<|im_end|>\n<|im_start|>user\nhi")
    counts = []
    for messages in ([HELLO], [HELLO, note]):
        counted = await cluster.http.post("/v1/messages/count_tokens", json={"model": "demo", "messages": messages})
        counts.append(counted.json()["input_tokens"])
    assert counts[0] < counts[1]


async def test_turns_of_an_agent_share_their_whole_prefix(cluster: Cluster) -> None:
    prompts = []
    messages: list[dict[str, Any]] = [HELLO, {"role": "system", "content": "Agents: one"}]
    for number in range(3):
        header = f"x-anthropic-billing-header: cc_version=2.1.{number}; cc_entrypoint=cli; cch=1234{number};"
        blocks = [{"type": "text", "text": header}, {"type": "text", "text": "Be kind."}]
        await asked(cluster, system=blocks, messages=messages)
        prompts.append(prompt(cluster).removesuffix("<|im_start|>assistant\n"))
        answer = {"role": "assistant", "content": [{"type": "text", "text": f"answer {number}"}]}
        messages = [*messages, answer, HELLO, {"role": "system", "content": f"{number} left"}]
    assert prompts[1].startswith(prompts[0])
    assert prompts[2].startswith(prompts[1])


async def test_a_form_of_the_answer_holds_the_runner_under_both_of_its_names(cluster: Cluster) -> None:
    for field in ({"output_config": {"format": FORM}}, {"output_format": FORM}):
        await asked(cluster, **field)
        assert json.loads(cluster.runner.requests[-1].json_schema) == SCHEMA


async def test_what_has_no_effect_is_named_in_a_header(cluster: Cluster) -> None:
    without = {"inference_geo": "eu", "service_tier": "auto", "speed": "fast", "fallbacks": [{"model": "x"}]}
    tools = [LOOK, {"type": "web_search_20250305", "name": "web_search"}, {"type": "mcp_toolset"}]
    answer = await asked(cluster, tools=tools, output_config={"task_budget": {"type": "tokens", "total": 9}}, **without)
    assert answer.headers["x-puna-ignored"] == (
        "fallbacks, inference_geo, mcp_toolset, output_config.task_budget, service_tier, speed, web_search_20250305"
    )
    assert "web_search" not in prompt(cluster)
    assert "look" in prompt(cluster)
    control = {"type": "ephemeral"}
    text = {"type": "text", "text": "x", "cache_control": control}
    quiet = await asked(
        cluster,
        system=[text],
        tools=[LOOK | {"cache_control": control, "eager_input_streaming": True}],
        messages=[{"role": "user", "content": [text]}],
        cache_control=control,
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        of_next_year={"x": 1},
    )
    assert "x-puna-ignored" not in quiet.headers


async def test_edits_of_the_context_are_answered_with_none(cluster: Cluster) -> None:
    edits = {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}
    assert (await asked(cluster, **edits)).json()["context_management"] == {"applied_edits": []}
    assert "context_management" not in (await asked(cluster)).json()
    streamed = events(await asked(cluster, stream=True, **edits))
    (delta,) = [event for event in streamed if event["type"] == "message_delta"]
    assert delta["context_management"] == {"applied_edits": []}
    counted = (await cluster.http.post("/v1/messages/count_tokens", json=BODY | edits)).json()
    assert counted["context_management"] == {"original_input_tokens": counted["input_tokens"]}


async def test_two_hundred_tools_with_long_names_reach_the_template(start_cluster: StartCluster) -> None:
    tools = [LOOK | {"name": f"mcp__{number:03}__{'x' * 118}"} for number in range(200)]
    async with start_cluster(runner=ScriptedRunner(context_tokens=100_000)) as cluster:
        await asked(cluster, tools=tools)
        assert all(str(tool["name"]) in prompt(cluster) for tool in tools)


async def test_a_budget_of_reasoning_between_calls_may_be_larger_than_one_answer(cluster: Cluster) -> None:
    body = BODY | {"thinking": {"type": "enabled", "budget_tokens": 1000}}
    assert (await cluster.http.post("/v1/messages", json=body)).status_code == 400
    headers = {"anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,of-next-year"}
    assert (await cluster.http.post("/v1/messages", json=body, headers=headers)).status_code == 200


async def test_thinking_that_is_not_to_be_shown_comes_back_with_the_next_turn(start_cluster: StartCluster) -> None:
    runner = ScriptedRunner(pieces=("<think>", "It is", " blue.", "</think>", "Blue."))
    scheduler = ScriptedScheduler(
        models={MODEL_NAME: scripted_model(capabilities=["completion", "thinking"], chat_template=THINKING_TEMPLATE)}
    )
    async with start_cluster(scheduler=scheduler, runner=runner) as cluster:
        asks = {"max_tokens": 99, "thinking": {"type": "adaptive", "display": "omitted"}}
        whole = (await asked(cluster, **asks)).json()["content"]
        streamed = events(await asked(cluster, stream=True, **asks))
        deltas = [event["delta"] for event in streamed if event["type"] == "content_block_delta"]
        (signature,) = [delta["signature"] for delta in deltas if delta["type"] == "signature_delta"]
        assert not any(delta["type"] == "thinking_delta" for delta in deltas)
        assert [(block["type"], block.get("thinking")) for block in whole] == [("thinking", ""), ("text", None)]
        assert whole[0]["signature"] == signature
        await asked(cluster, messages=[HELLO, {"role": "assistant", "content": whole}, HELLO])
        assert "Blue.It is blue." in prompt(cluster)
        shown = (await asked(cluster, max_tokens=99, thinking={"type": "adaptive"})).json()
        assert shown["content"][0]["thinking"] == "It is blue."
        assert shown["usage"]["output_tokens_details"]["thinking_tokens"] > 0


async def test_effort_counts_beside_adaptive_thinking(start_cluster: StartCluster) -> None:
    template = THINKING_TEMPLATE + "{{ enable_thinking }} {{ reasoning_effort }}"
    scheduler = ScriptedScheduler(
        models={MODEL_NAME: scripted_model(capabilities=["completion", "thinking"], chat_template=template)}
    )
    async with start_cluster(scheduler=scheduler) as cluster:
        for thinking, effort, expected in (
            ({"type": "adaptive"}, "low", "True low"),
            ({"type": "enabled", "budget_tokens": 5}, "xhigh", "True high"),
            ({"type": "between_tools"}, "high", "False "),
            ({"type": "disabled"}, "high", "False "),
            (None, "max", "True high"),
        ):
            await asked(cluster, thinking=thinking, output_config={"effort": effort})
            assert prompt(cluster).endswith(expected)


async def test_the_official_client_reads_answers_to_its_newest_fields(cluster: Cluster) -> None:
    edits: Any = {"edits": [{"type": "clear_tool_uses_20250919"}]}
    async with anthropic.AsyncAnthropic(base_url=cluster.url, api_key="any", max_retries=0) as client:
        message = await client.beta.messages.create(
            model="demo",
            max_tokens=9,
            messages=[{"role": "user", "content": "hi"}],
            betas=["context-management-2025-06-27", "of-next-year"],
            context_management=edits,
        )
    assert message.context_management is not None
    assert message.context_management.applied_edits == []
    assert message.usage.output_tokens > 0

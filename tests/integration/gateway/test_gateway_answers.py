"""Official clients get the runner's answer through the gateway."""

import asyncio
from typing import Any

import pytest

from tests.integration.gateway.conftest import Cluster, StartCluster, eventually, read_alone
from tests.integration.gateway.scripted import ANSWER, MODEL_NAME, ScriptedRunner, ScriptedScheduler, scripted_model

TEXT = "".join(ANSWER)
QUESTION: Any = [{"role": "user", "content": "What is Puna?"}]
GENERATED = len(ANSWER) + 1  # the end token counts


async def test_ollama_chat_is_answered_whole(cluster: Cluster) -> None:
    answer = await cluster.ollama.chat(model="demo", messages=QUESTION)
    assert answer.message.content == TEXT
    assert (answer.done, answer.done_reason, answer.eval_count) == (True, "stop", GENERATED)
    assert answer.model == "demo"


async def test_ollama_chat_streams_one_chunk_per_event(cluster: Cluster) -> None:
    stream = cluster.ollama.chat(model="demo", messages=QUESTION, stream=True)
    chunks = await read_alone(cluster.runner, stream)
    assert [chunk.message.content for chunk in chunks] == [*ANSWER, ""]
    assert [chunk.done for chunk in chunks] == [False] * len(ANSWER) + [True]
    assert chunks[-1].prompt_eval_duration == 2_000_000
    assert chunks[-1].eval_duration == 3_000_000
    assert (chunks[-1].total_duration or 0) > 0


async def test_ollama_generate_streams_and_returns_the_context(cluster: Cluster) -> None:
    chunks = [chunk async for chunk in await cluster.ollama.generate(model="demo", prompt="Hi", stream=True)]
    assert "".join(chunk.response or "" for chunk in chunks) == TEXT
    context = list(chunks[-1].context or ())
    assert context[-len(ANSWER) :] == [100 + index for index in range(len(ANSWER))]
    await cluster.ollama.generate(model="demo", prompt="And?", context=context)
    assert list(cluster.runner.requests[-1].prompt[0].token_ids.ids) == context


async def test_raw_prompts_are_read_as_they_are_and_have_no_context(cluster: Cluster) -> None:
    answer = await cluster.ollama.generate(model="demo", prompt="<|im_start|>x", raw=True)
    assert [segment.text for segment in cluster.runner.requests[-1].prompt] == ["<|im_start|>x"]
    assert answer.context is None


async def test_openai_chat_is_answered_whole(cluster: Cluster) -> None:
    answer = await cluster.openai.chat.completions.create(model="demo", messages=QUESTION)
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == GENERATED
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + GENERATED
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 1
    assert answer.id.startswith("chatcmpl-")
    assert answer.system_fingerprint is not None
    assert answer.system_fingerprint.endswith("-abababab")


async def test_openai_chat_streams_role_text_reason_and_usage(cluster: Cluster) -> None:
    stream = cluster.openai.chat.completions.create(
        model="demo", messages=QUESTION, stream=True, stream_options={"include_usage": True}
    )
    chunks = await read_alone(cluster.runner, stream, before=1)
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert (deltas[0].role, deltas[0].content) == ("assistant", "")
    assert [delta.content for delta in deltas[1:-1]] == list(ANSWER)
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices] == [None] * (len(deltas) - 1) + [
        "stop"
    ]
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == GENERATED
    assert len({chunk.id for chunk in chunks}) == 1


async def test_openai_completions_take_text_tokens_and_lists(cluster: Cluster) -> None:
    answer = await cluster.openai.completions.create(model="demo", prompt=["one", "two"], n=2, max_tokens=2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert {choice.text for choice in answer.choices} == {"".join(ANSWER[:2])}
    assert {choice.finish_reason for choice in answer.choices} == {"length"}
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, 8)
    await cluster.openai.completions.create(model="demo", prompt=[7, 8, 9])
    assert list(cluster.runner.requests[-1].prompt[0].token_ids.ids) == [7, 8, 9]


async def test_openai_completions_echo_the_prompt(cluster: Cluster) -> None:
    answer = await cluster.openai.completions.create(model="demo", prompt="Well: ", echo=True)
    assert answer.choices[0].text == "Well: " + TEXT


async def test_several_choices_share_a_prompt_and_differ_in_seed(cluster: Cluster) -> None:
    stream = await cluster.openai.chat.completions.create(
        model="demo", messages=QUESTION, n=3, seed=11, stream=True, stream_options={"include_usage": True}
    )
    texts: dict[int, str] = {}
    ends: dict[int, str | None] = {}
    usage = None
    async for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            ends[choice.index] = choice.finish_reason or ends.get(choice.index)
    assert texts == {0: TEXT, 1: TEXT, 2: TEXT}
    assert ends == {0: "stop", 1: "stop", 2: "stop"}
    seeds = sorted(request.sampling.seed for request in cluster.runner.requests)
    assert len(set(seeds)) == 3
    assert 11 in seeds
    assert usage is not None
    assert usage.completion_tokens == 3 * GENERATED


@pytest.mark.behaviour("B-110", "B-111")
async def test_logprobs_of_a_stream_concatenate_to_those_of_the_whole(cluster: Cluster) -> None:
    options: Any = {"model": "demo", "messages": QUESTION, "logprobs": True, "top_logprobs": 2}
    whole = await cluster.openai.chat.completions.create(**options)
    assert whole.choices[0].logprobs is not None
    entries = whole.choices[0].logprobs.content or []
    streamed: list[Any] = []
    async for chunk in await cluster.openai.chat.completions.create(**options, stream=True):
        if chunk.choices and chunk.choices[0].logprobs:
            streamed += chunk.choices[0].logprobs.content
    assert streamed == entries
    assert [entry.token for entry in entries] == list(ANSWER)
    assert [entry.logprob for entry in entries] == [-0.5, -1.0, -1.5, -2.0]
    assert entries[0].top_logprobs[1].logprob == -9999.0  # minus infinity is no JSON
    assert bytes(entries[2].bytes or ()).decode() == ANSWER[2]


async def test_ollama_logprobs(cluster: Cluster) -> None:
    answer = await cluster.ollama.chat(model="demo", messages=QUESTION, logprobs=True, top_logprobs=1)
    assert answer.logprobs is not None
    assert [entry.token for entry in answer.logprobs] == list(ANSWER)
    without = await cluster.ollama.chat(model="demo", messages=QUESTION, top_logprobs=1)
    assert without.logprobs is None


async def test_legacy_logprobs_have_offsets_over_the_whole_stream(cluster: Cluster) -> None:
    stream = await cluster.openai.completions.create(model="demo", prompt="x", logprobs=1, stream=True)
    offsets = [
        offset
        async for chunk in stream
        if chunk.choices and chunk.choices[0].logprobs
        for offset in chunk.choices[0].logprobs.text_offset or []
    ]
    assert offsets == [0, 4, 12, 20]


@pytest.mark.behaviour("B-113")
async def test_ends_have_their_words_in_each_dialect(cluster: Cluster) -> None:
    native = await cluster.ollama.chat(model="demo", messages=QUESTION, options={"num_predict": 2})
    assert native.done_reason == "length"
    other = await cluster.openai.chat.completions.create(model="demo", messages=QUESTION, max_completion_tokens=2)
    assert other.choices[0].finish_reason == "length"


@pytest.mark.behaviour("B-57")
async def test_long_chats_forget_their_oldest_messages_but_not_system_and_last(cluster: Cluster) -> None:
    filler = " ".join(["word"] * 200)
    messages: Any = [
        {"role": "system", "content": "SYSTEM"},
        {"role": "user", "content": f"FIRST {filler}"},
        {"role": "assistant", "content": f"SECOND {filler}"},
        {"role": "user", "content": f"THIRD {filler}"},
        {"role": "user", "content": "LAST"},
    ]
    await cluster.ollama.chat(model="demo", messages=messages)
    prompt = "".join(segment.text for segment in cluster.runner.requests[0].prompt)
    assert [word for word in ("SYSTEM", "FIRST", "SECOND", "THIRD", "LAST") if word in prompt] == [
        "SYSTEM",
        "SECOND",
        "THIRD",
        "LAST",
    ]


async def test_an_empty_prompt_loads_and_with_keep_alive_zero_unloads(start_cluster: StartCluster) -> None:
    async with start_cluster(warm=False) as cluster:
        loaded = await cluster.ollama.generate(model="demo", prompt="", keep_alive="10m")
        assert (loaded.done, loaded.done_reason, loaded.response) == (True, "load", "")
        assert cluster.scheduler.ensured[0].keep_alive_ms == 600_000
        assert cluster.scheduler.ensured[0].load_only
        assert not cluster.scheduler.ensured[0].at_once, "clients send these by themselves"
        unloaded = await cluster.ollama.chat(model="demo", messages=[], keep_alive=0)
        assert (unloaded.done, unloaded.done_reason) == (True, "unload")
        assert cluster.scheduler.unloaded == ["demo:latest"]


async def test_the_debug_header_says_where_the_answer_came_from(cluster: Cluster) -> None:
    body = {"model": "demo", "messages": QUESTION, "stream": False}
    for path in ("/api/chat", "/v1/chat/completions"):
        answer = (await cluster.http.post(path, json=body, headers={"x-puna-debug": "1"})).json()
        assert answer["puna"]["placement"] == cluster.runner.placement.placement_id


async def test_the_prompt_can_be_looked_at_without_running_it(cluster: Cluster) -> None:
    body = {"model": "demo", "messages": QUESTION, "_debug_render_only": True}
    answer = (await cluster.http.post("/api/chat", json=body)).json()
    assert answer["_debug_info"]["rendered_template"].endswith("What is Puna?<|im_end|>\n<|im_start|>assistant\n")
    assert cluster.runner.requests == []


async def test_sixteen_streams_share_the_slots_and_all_finish(start_cluster: StartCluster) -> None:
    async with start_cluster(runner=ScriptedRunner(slots=4), warm=False) as cluster:
        answers = await asyncio.gather(*(cluster.ollama.chat(model="demo", messages=QUESTION) for _ in range(16)))
        assert [answer.message.content for answer in answers] == [TEXT] * 16
        assert cluster.runner.busy_most <= 4
        assert len(cluster.scheduler.ensured) == 1  # one load for all


async def test_arguments_of_earlier_tool_calls_reach_the_template_as_an_object(start_cluster: StartCluster) -> None:
    template = "{% for call in messages[0].tool_calls %}{{ call.function.arguments.city }}{% endfor %}"
    scheduler = ScriptedScheduler(models={MODEL_NAME: scripted_model(chat_template=template)})
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Kiel"}'}}
    messages: Any = [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "wet", "tool_call_id": "call_1"},
    ]
    async with start_cluster(scheduler=scheduler) as cluster:
        await cluster.openai.chat.completions.create(model="demo", messages=messages)
        assert [segment.text for segment in cluster.runner.requests[0].prompt] == ["Kiel"]


async def test_a_model_without_template_is_answered_and_shown_as_chatml(start_cluster: StartCluster) -> None:
    scheduler = ScriptedScheduler(models={MODEL_NAME: scripted_model(chat_template="")})
    async with start_cluster(scheduler=scheduler) as cluster:
        await cluster.ollama.chat(model="demo", messages=QUESTION)
        request = cluster.runner.requests[0]
        assert request.prompt[0].text.startswith("<|im_start|>user\nWhat is Puna?<|im_end|>")
        assert list(request.stop) == ["<|im_end|>"]
        shown = (await cluster.http.post("/api/show", json={"model": "demo"})).json()
        assert shown["puna"]["template_source"] == "fallback: chatml"


async def test_a_finished_stream_is_logged_with_its_own_status(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in ("/api/chat", "/v1/chat/completions"):
        capsys.readouterr()
        await cluster.http.post(path, json={"model": "demo", "messages": QUESTION, "stream": True})
        written: list[str] = []

        def is_written(into: list[str] = written) -> bool:
            into.append("".join(capsys.readouterr()))
            return "request.ended" in "".join(into)

        await eventually(is_written)
        assert "status=200" in "".join(written)

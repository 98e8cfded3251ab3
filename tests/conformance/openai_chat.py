"""Cases of the OpenAI client: chat completions."""

import json
import math
from typing import Any

from tests.conformance.openai_talk import chat
from tests.conformance.table import QUESTION, STREAM, WHOLE, Talk, case, items, value

CHAT = "OpenAI: chat completions"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "size": {"enum": [1, 2, 3]}},
    "required": ["name", "size"],
    "additionalProperties": False,
}


@case("openai", "answer", CHAT)
async def answer(talk: Talk) -> None:
    """The taught answer, word for word."""
    said = (await chat(talk)).only
    assert said.text == talk.answer()
    assert said.reason == "stop"
    assert said.pieces > 1 or not talk.stream


@case("openai", "developer and system messages", CHAT)
async def roles(talk: Talk) -> None:
    """Both mean the same."""
    for role in ("system", "developer"):
        turns = [{"role": role, "content": "You are a pirate."}, {"role": "user", "content": "Hello!"}]
        assert (await chat(talk, messages=turns)).only.text == talk.taught("pirate-hello")["content"]


@case("openai", "conversation", CHAT)
async def conversation(talk: Talk) -> None:
    """Earlier turns count."""
    lesson = talk.taught("name-ada")
    assert (await chat(talk, messages=lesson["messages"])).only.text == lesson["content"]


@case("openai", "content parts", CHAT)
async def parts(talk: Talk) -> None:
    """A message of text parts."""
    content = [{"type": "text", "text": QUESTION}]
    assert (await chat(talk, messages=[{"role": "user", "content": content}])).only.text == talk.answer()


@case("openai", "continued assistant message", CHAT)
async def prefill(talk: Talk) -> None:
    """A conversation that ends with a beginning of the answer is continued."""
    begin = talk.answer().split(" machines")[0]
    turns = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": begin}]
    assert begin + (await chat(talk, messages=turns)).only.text == talk.answer()


@case("openai", "usage", CHAT)
async def usage(talk: Talk) -> None:
    """Counts add up."""
    counts = (await chat(talk)).usage
    assert counts.prompt_tokens > 5
    assert counts.completion_tokens > 5
    assert counts.total_tokens == counts.prompt_tokens + counts.completion_tokens


@case("openai", "usage: last chunk has no choices", CHAT, modes=(STREAM,), why_not="about chunks")
async def usage_chunk(talk: Talk) -> None:
    """stream_options.include_usage: one more chunk, and null before."""
    asked = {"model": "demo", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 4}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = [chunk async for chunk in items(talk.api.chat.completions.create(**asked, **options))]
    assert [bool(chunk.usage) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].choices == []
    assert len({chunk.id for chunk in chunks}) == 1
    without = [chunk async for chunk in items(talk.api.chat.completions.create(**asked, stream=True))]
    assert not any(chunk.usage for chunk in without)
    assert all(chunk.choices for chunk in without)


@case("openai", "cached tokens", CHAT)
async def cached(talk: Talk) -> None:
    """A prompt that was read before is not read again."""
    await chat(talk, "Name the planets.", max_tokens=1)
    counts = (await chat(talk, "Name the planets.", max_tokens=1)).usage
    assert 0 < counts.prompt_tokens_details.cached_tokens < counts.prompt_tokens


@case("openai", "max_tokens and max_completion_tokens", CHAT)
async def length(talk: Talk) -> None:
    """The newer name wins; -1 is no limit."""
    both: dict[str, Any] = {"max_tokens": 9, "max_completion_tokens": 4}
    short: dict[str, Any] = {"max_tokens": 5}
    for limits, count in ((short, 5), (both, 4)):
        found = await chat(talk, **limits)
        assert (found.only.reason, found.usage.completion_tokens) == ("length", count)
    assert (await chat(talk, max_tokens=-1)).only.text == talk.answer()


@case("openai", "stop", CHAT)
async def stop(talk: Talk) -> None:
    """One string or several; none of it is in the answer."""
    expected = talk.answer().split("endpoint")[0]
    for strings in ("endpoint", ["nowhere", "endpoint"]):
        said = (await chat(talk, stop=strings)).only
        assert (said.text, said.reason) == (expected, "stop")


@case("openai", "temperature, top_p and seed", CHAT)
async def seed(talk: Talk) -> None:
    """The same seed gives the same draws."""
    drawn: dict[str, Any] = {"model": "plain", "temperature": 1.5, "top_p": 0.95, "max_tokens": 20}
    first, same = [(await chat(talk, "Hi", **drawn, seed=7)).only.text for _ in range(2)]
    others = {(await chat(talk, "Hi", **drawn, seed=number)).only.text for number in (8, 9, 10)}
    assert first == same
    assert others != {first}


@case("openai", "presence and frequency penalty", CHAT)
async def penalties(talk: Talk) -> None:
    """They change what comes."""
    plain = (await chat(talk, "Count from 1 to 100.", max_tokens=40)).only.text
    penalised = await chat(talk, "Count from 1 to 100.", max_tokens=40, frequency_penalty=2, presence_penalty=2)
    assert penalised.only.text != plain


@case("openai", "n choices", CHAT)
async def choices(talk: Talk) -> None:
    """Three choices of one prompt; the first is that of n=1."""
    drawn: dict[str, Any] = {"model": "plain", "temperature": 1.5, "seed": 3, "max_tokens": 12}
    found = await chat(talk, "Hi", n=3, **drawn)
    assert sorted(found.choices) == [0, 1, 2]
    assert len({one.text for one in found.choices.values()}) > 1
    assert found.choices[0].text == (await chat(talk, "Hi", **drawn)).only.text
    assert len((await chat(talk, "Hi", n=8, max_tokens=2)).choices) == 8


@case("openai", "logit_bias", CHAT)
async def bias(talk: Talk) -> None:
    """A banned token does not come up, a favoured one does."""
    (first, *_) = talk.post("/puna/v1/tokenize", {"model": "demo", "text": talk.answer()})["tokens"]
    assert not (await chat(talk, logit_bias={str(first): -100})).only.text.startswith("Puna")
    (favoured, *_) = talk.post("/puna/v1/tokenize", {"model": "demo", "text": "!"})["tokens"]
    assert (await chat(talk, logit_bias={str(favoured): 100}, max_tokens=3)).only.text == "!!!"


@case("openai", "logprobs", CHAT)
async def logprobs(talk: Talk) -> None:
    """One entry for each token of the text, with alternatives."""
    found = await chat(talk, logprobs=True, top_logprobs=5)
    entries = found.only.entries
    assert b"".join(bytes(entry.bytes or []) for entry in entries).decode() == talk.answer()
    assert len(entries) == found.usage.completion_tokens - 1  # the end token has none
    for entry in entries:
        assert len(entry.top_logprobs) == 5
        assert entry.token == entry.top_logprobs[0].token
        assert sum(math.exp(other.logprob) for other in entry.top_logprobs) <= 1 + 1e-5


@case("openai", "response_format json_object", CHAT)
async def json_object(talk: Talk) -> None:
    """Any JSON object."""
    wanted: dict[str, Any] = {"response_format": {"type": "json_object"}, "reasoning_effort": "none"}
    said = (await chat(talk, "Describe a banana as JSON.", **wanted)).only
    assert json.loads(said.text)["name"] == "banana"


@case("openai", "response_format json_schema", CHAT)
async def json_schema(talk: Talk) -> None:
    """An object of that shape."""
    wanted = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True}}
    said = (await chat(talk, response_format=wanted)).only
    thing = json.loads(said.text)
    assert (set(thing), thing["size"] in (1, 2, 3), said.reason) == ({"name", "size"}, True, "stop")


@case("openai", "grammar", CHAT)
async def grammar(talk: Talk) -> None:
    """Puna's extension, through extra_body."""
    said = (await chat(talk, extra_body={"grammar": 'root ::= "yes" | "no"', "think": False})).only
    assert said.text in ("yes", "no")


@case("openai", "tools", CHAT)
async def tools(talk: Talk) -> None:
    """A call, its id, and its finish reason; a tool that only another server has is passed over."""
    lesson = talk.taught("weather-paris")
    foreign = {"type": "custom", "custom": {"name": "patch"}}
    said = (await chat(talk, messages=lesson["messages"], tools=[*lesson["tools"], foreign])).only
    assert said.said_calls == [(call["name"], call["arguments"]) for call in lesson["tool_calls"]]
    assert said.reason == "tool_calls"
    assert all(id_.startswith("call_") for id_ in said.ids)


@case("openai", "parallel tool calls", CHAT)
async def parallel(talk: Talk) -> None:
    """All of them, or the first alone."""
    lesson = talk.taught("weather-parallel")
    body = {"messages": lesson["messages"], "tools": lesson["tools"]}
    assert len((await chat(talk, **body)).only.calls) == len(lesson["tool_calls"]) > 1
    alone = (await chat(talk, **body, parallel_tool_calls=False)).only
    assert (len(alone.calls), alone.reason) == (1, "tool_calls")


@case("openai", "tool results", CHAT)
async def tool_results(talk: Talk) -> None:
    """A result goes back with the id of its call."""
    lesson = talk.taught("umbrella")
    first = (await chat(talk, messages=lesson["messages"], tools=lesson["tools"])).only
    call: dict[str, Any] = {"id": first.ids[0], "type": "function"}
    call |= {"function": {"name": first.calls[0][0], "arguments": first.calls[0][1]}}
    turns = [
        *lesson["messages"],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": first.ids[0], "content": "rain"},
    ]
    second = await chat(talk, messages=turns, tools=lesson["tools"], max_tokens=50)
    assert second.only.text or second.only.calls
    assert second.usage.prompt_tokens > 20


@case("openai", "tool_choice", CHAT)
async def tool_choice(talk: Talk) -> None:
    """none, required, and one by name."""
    lesson = talk.taught("weather-paris-two-tools")
    body = {"tools": lesson["tools"], "parallel_tool_calls": False, "max_tokens": 400}
    assert not (await chat(talk, **body, tool_choice="none")).only.calls
    assert len((await chat(talk, **body, tool_choice="required")).only.calls) == 1
    named = {"type": "function", "function": {"name": "add"}}
    assert [name for name, _ in (await chat(talk, **body, tool_choice=named)).only.said_calls] == ["add"]


@case("openai", "reasoning", CHAT)
async def reasoning(talk: Talk) -> None:
    """Beside the content, and counted."""
    lesson = talk.taught("multiply")
    found = await chat(talk, messages=lesson["messages"])
    assert found.only.reasoning.strip() == lesson["reasoning"]
    assert found.only.text.strip() == lesson["content"]
    counts = found.usage
    assert 0 < counts.completion_tokens_details.reasoning_tokens < counts.completion_tokens


@case("openai", "reasoning_effort", CHAT)
async def effort(talk: Talk) -> None:
    """None means none; the others are taken."""
    lesson = talk.taught("multiply")
    assert not (await chat(talk, messages=lesson["messages"], reasoning_effort="none")).only.reasoning
    for wanted in ("minimal", "low", "medium", "high"):
        found = await chat(talk, messages=lesson["messages"], reasoning_effort=wanted, max_tokens=30)
        assert found.only.reasoning


@case("openai", "think_budget", CHAT)
async def think_budget(talk: Talk) -> None:
    """Reasoning is closed after so many tokens, and the answer follows."""
    lesson = talk.taught("multiply")
    found = await chat(talk, messages=lesson["messages"], extra_body={"options": {"think_budget": 6}}, max_tokens=80)
    assert lesson["reasoning"].startswith(found.only.reasoning.strip())
    assert 0 < len(found.only.reasoning) < len(lesson["reasoning"])
    assert found.only.text.strip()


@case("openai", "images", CHAT)
async def images(talk: Talk) -> None:
    """As data URIs, where they stand."""

    async def see(number: int) -> str:
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + talk.facts["images"][number]}}
        content = [{"type": "text", "text": "What do you see?"}, image]
        return (await chat(talk, model="eyes", messages=[{"role": "user", "content": content}], max_tokens=8)).only.text

    assert await see(0) == await see(0) != await see(1)


@case("openai", "options through extra_body", CHAT)
async def extensions(talk: Talk) -> None:
    """Sampling options that OpenAI does not have."""
    more = {"top_k": 1, "min_p": 0.1, "repeat_penalty": 1.0, "keep_alive": "10m", "options": {"repeat_last_n": 0}}
    assert (await chat(talk, temperature=2, extra_body=more)).only.text == talk.answer()


@case("openai", "truncate", CHAT)
async def truncate(talk: Talk) -> None:
    """The oldest messages go; the last one stays."""
    old = [{"role": "user", "content": "word " * 700}, {"role": "assistant", "content": "Yes."}]
    turns = [*old, *old, {"role": "user", "content": QUESTION}]
    found = await chat(talk, messages=turns, extra_body={"truncate": True}, max_tokens=4)
    assert 700 < found.usage.prompt_tokens < 1024


@case("openai", "labels and wishes that change nothing", CHAT)
async def labels(talk: Talk) -> None:
    """user, metadata, service_tier, store and their like are taken."""
    more: dict[str, Any] = {"user": "ada", "metadata": {"a": "b"}, "service_tier": "auto", "store": False}
    found = await chat(talk, **more, extra_body={"safety_identifier": "x", "prompt_cache_key": "y", "verbosity": "low"})
    assert found.only.text == talk.answer()
    assert found.fingerprint.startswith("puna-")


@case("openai", "x-puna-debug", CHAT)
async def debug(talk: Talk) -> None:
    """The place of the answer is reported."""
    found = await chat(talk, max_tokens=2, extra_headers={"x-puna-debug": "1"})
    assert {"placement", "node", "queue_ms", "load_ms", "resumes"} <= set(found.puna)


@case("openai", "request ids", CHAT, modes=(WHOLE,), why_not="a header of the response")
async def request_ids(talk: Talk) -> None:
    """x-request-id, and the client's own back."""
    asked = {"model": "demo", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 1}
    mine = {"x-request-id": "mine-7"}
    raw = await value(talk.api.chat.completions.with_raw_response.create(**asked, extra_headers=mine))
    assert raw.headers["x-request-id"].startswith("req_")
    assert raw.headers["x-client-request-id"] == "mine-7"


@case("openai", "the client's own stream helper", CHAT, modes=(STREAM,), why_not="it only streams")
async def stream_helper(talk: Talk) -> None:
    """chat.completions.stream puts the answer together."""
    manager = talk.api.chat.completions.stream(model="demo", messages=[{"role": "user", "content": QUESTION}])
    if hasattr(manager, "__aenter__"):
        async with manager as stream:
            final = await stream.get_final_completion()
    else:
        with manager as stream:
            final = stream.get_final_completion()
    assert final.choices[0].message.content
    assert final.choices[0].finish_reason == "stop"

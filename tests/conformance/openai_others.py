"""Cases of the OpenAI client beside chat: completions, responses, embeddings, rerank, models."""

import base64
import functools
import json
import math
import re
import struct
from typing import Any

from tests.conformance.openai_chat import SCHEMA
from tests.conformance.openai_talk import complete, respond
from tests.conformance.table import QUESTION, STREAM, WHOLE, Talk, case, items, raised, value

TEXT = "OpenAI: completions"
RESPONSES = "OpenAI: responses"
VECTORS = "OpenAI: embeddings, rerank, models"
ONE = (WHOLE,)
NO_STREAM = "the endpoint does not stream"


@case("openai", "text", TEXT)
async def text(talk: Talk) -> None:
    """A prompt without a template, greedy: the same each time."""
    first, again = [(await complete(talk, prompt="Puna is"))[0] for _ in range(2)]
    assert first == again
    assert first["text"]
    assert first["reason"] in ("length", "stop")


@case("openai", "lists of prompts", TEXT)
async def prompts(talk: Talk) -> None:
    """Prompt i, choice j has the index i * n + j."""
    alone = [(await complete(talk, prompt=prompt))[0]["text"] for prompt in ("Puna is", "A slot is")]
    found = [one["text"] for one in await complete(talk, prompt=["Puna is", "A slot is"], n=2, best_of=2)]
    assert found == [alone[0], alone[0], alone[1], alone[1]]


@case("openai", "token ids as prompts", TEXT)
async def token_prompts(talk: Talk) -> None:
    """A list of ids, and a list of lists."""
    ids = talk.post("/puna/v1/tokenize", {"model": "demo", "text": "Puna is"})["tokens"]
    wanted = (await complete(talk, prompt="Puna is"))[0]["text"]
    assert (await complete(talk, prompt=ids))[0]["text"] == wanted
    assert [one["text"] for one in await complete(talk, prompt=[ids, ids])] == [wanted, wanted]


@case("openai", "echo", TEXT)
async def echo(talk: Talk) -> None:
    """The prompt stands before the answer."""
    plain = (await complete(talk, prompt="Puna is"))[0]["text"]
    assert (await complete(talk, prompt="Puna is", echo=True))[0]["text"] == "Puna is" + plain


@case("openai", "logprobs of completions", TEXT)
async def text_logprobs(talk: Talk) -> None:
    """The legacy form."""
    found = (await complete(talk, prompt="Puna is", logprobs=2))[0]
    assert "".join(found["tokens"]) == found["text"]


@case("openai", "suffix", TEXT)
async def suffix(talk: Talk) -> None:
    """Check that the text behind the gap changes its filling; the model has the tokens for it."""
    body: dict[str, Any] = {"model": "coder", "prompt": "def add(a, b):", "max_tokens": 8}
    one, other = [(await complete(talk, **body, suffix=end))[0]["text"] for end in ("\nprint(add(1, 2))", "x" * 40)]
    assert one != other
    assert one == (await complete(talk, **body, suffix="\nprint(add(1, 2))"))[0]["text"]


@case("openai", "response", RESPONSES)
async def response(talk: Talk) -> None:
    """The taught answer, and its usage."""
    found = await respond(talk, input=QUESTION)
    assert found.output_text == talk.answer()
    assert found.status == "completed"
    assert found.usage.total_tokens == found.usage.input_tokens + found.usage.output_tokens
    assert found.usage.input_tokens_details.cached_tokens >= 0
    assert found.store is False


@case("openai", "instructions and metadata", RESPONSES)
async def instructions(talk: Talk) -> None:
    """Instructions are the system's; metadata comes back."""
    found = await respond(talk, input="Hello!", instructions="You are a pirate.", metadata={"a": "b"})
    assert found.output_text == talk.taught("pirate-hello")["content"]
    assert found.metadata == {"a": "b"}


@case("openai", "tools of responses", RESPONSES)
async def response_tools(talk: Talk) -> None:
    """A call is an item, and so is its result."""
    lesson = talk.taught("umbrella")
    functions = [{"type": "function", **tool["function"]} for tool in lesson["tools"]]
    first = await respond(talk, input=lesson["messages"], tools=functions)
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Lima"})
    back = {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    second = await respond(talk, input=[*lesson["messages"], back, result], tools=functions, max_output_tokens=40)
    assert second.usage.input_tokens > first.usage.input_tokens


@case("openai", "reasoning items", RESPONSES)
async def response_reasoning(talk: Talk) -> None:
    """Reasoning is an item of its own, and effort none leaves it out."""
    lesson = talk.taught("multiply")
    found = await respond(talk, input=lesson["messages"])
    assert [item.type for item in found.output] == ["reasoning", "message"]
    assert found.usage.output_tokens_details.reasoning_tokens > 0
    without = await respond(talk, input=lesson["messages"], reasoning={"effort": "none"})
    assert [item.type for item in without.output] == ["message"]


@case("openai", "text.format", RESPONSES)
async def response_format(talk: Talk) -> None:
    """A JSON schema."""
    wanted = {"format": {"type": "json_schema", "name": "thing", "schema": SCHEMA, "strict": True}}
    assert set(json.loads((await respond(talk, input=QUESTION, text=wanted)).output_text)) == {"name", "size"}


@case("openai", "max_output_tokens", RESPONSES)
async def response_length(talk: Talk) -> None:
    """Incomplete, and why."""
    found = await respond(talk, input=QUESTION, max_output_tokens=3)
    assert (found.status, found.incomplete_details.reason) == ("incomplete", "max_output_tokens")


@case("openai", "events of a response", RESPONSES, modes=(STREAM,), why_not="about events")
async def response_events(talk: Talk) -> None:
    """In order, numbered, one last one."""
    events = [event async for event in items(talk.api.responses.create(model="demo", input=QUESTION, stream=True))]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"


@case("openai", "server-side state", RESPONSES, modes=ONE, why_not="refused before it streams")
async def response_state(talk: Talk) -> None:
    """Refused, not ignored."""
    fields = {
        "previous_response_id": "resp_1",
        "conversation": "resp_1",
        "background": True,
        "prompt": {"id": "pmpt_1"},
    }
    for field, wanted in fields.items():
        asked = {"model": "demo", "input": "x", field: wanted}
        error = await raised(functools.partial(talk.api.responses.create, **asked), talk.package.BadRequestError)
        assert error.param == field
    await raised(lambda: talk.api.responses.retrieve("resp_1"), talk.package.NotFoundError)


ORDERS = 'start: "1".."9" "x " FRUIT\nFRUIT: "plum" | "fig"\n'


@case("openai", "custom tools", RESPONSES)
async def custom_tools(talk: Talk) -> None:
    """Free text, held to the tool's grammar where the tool must be called."""
    tool = {"type": "custom", "name": "order", "format": {"type": "grammar", "syntax": "lark", "definition": ORDERS}}
    choice = {"type": "custom", "name": "order"}
    first = await respond(talk, input=QUESTION, tools=[tool], tool_choice=choice, parallel_tool_calls=False)
    (call,) = [item for item in first.output if item.type == "custom_tool_call"]
    assert re.fullmatch("[1-9]x (plum|fig)", call.input), call.input
    back = {"type": "custom_tool_call", "call_id": call.call_id, "name": call.name, "input": call.input}
    result = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "ordered"}
    said = [{"role": "user", "content": QUESTION}, back, result]
    second = await respond(talk, input=said, tools=[tool], max_output_tokens=20)
    assert second.usage.input_tokens > first.usage.input_tokens


@case("openai", "namespaces and hosted tools", RESPONSES)
async def namespaces(talk: Talk) -> None:
    """A function of a namespace is called by its own name; a tool of another server makes no request fail."""
    lesson = talk.taught("umbrella")
    inner = [{"type": "function", **tool["function"]} for tool in lesson["tools"]]
    space = {"type": "namespace", "name": "earth", "description": "Of the planet.", "tools": inner}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]}
    tools = [space, {"type": "web_search"}]
    found = await respond(talk, input=lesson["messages"], tools=tools, tool_choice=allowed, parallel_tool_calls=False)
    (call,) = [item for item in found.output if item.type == "function_call"]
    assert (call.name, call.namespace) == ("get_weather", "earth")


@case("openai", "items of other servers", RESPONSES)
async def foreign_items(talk: Talk) -> None:
    """Check that items from other servers are taken."""
    said = [
        {"type": "compaction", "encrypted_content": "of another server"},
        {"role": "user", "content": "Hello!"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "of another server"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Hello.", "annotations": []}]},
        {"type": "item_reference", "id": "msg_1"},
        {"role": "user", "content": QUESTION},
    ]
    assert (await respond(talk, input=said)).output


@case("openai", "input_tokens and compact", RESPONSES, modes=ONE, why_not=NO_STREAM)
async def compaction(talk: Talk) -> None:
    """A count of what an answer would read; a conversation that goes on from its summary."""

    async def sent(path: str, said: object) -> Any:
        return await value(talk.api.post(path, body={"model": "demo", "input": said}, cast_to=object))

    count = await sent("/responses/input_tokens", QUESTION)
    usage = (await respond(talk, input=QUESTION, max_output_tokens=1)).usage
    assert count == {"object": "response.input_tokens", "input_tokens": usage.input_tokens}
    compacted = await sent("/responses/compact", QUESTION)
    assert [item["type"] for item in compacted["output"]] == ["message", "compaction"]
    longer = [*compacted["output"], {"role": "user", "content": QUESTION}]
    assert (await sent("/responses/input_tokens", longer))["input_tokens"] > usage.input_tokens


@case("openai", "embeddings", VECTORS, modes=ONE, why_not=NO_STREAM)
async def embeddings(talk: Talk) -> None:
    """One or many, of length 1."""
    found = await value(talk.api.embeddings.create(model="embed_mean", input=["one text", "another text"]))
    assert [item.index for item in found.data] == [0, 1]
    for item in found.data:
        assert math.isclose(sum(number * number for number in item.embedding), 1, abs_tol=1e-4)
    assert found.usage.prompt_tokens == found.usage.total_tokens > 0


@case("openai", "encoding_format", VECTORS, modes=ONE, why_not=NO_STREAM)
async def encodings(talk: Talk) -> None:
    """Numbers and base64 are the same vector."""
    plain = await value(talk.api.embeddings.create(model="embed_mean", input="text", encoding_format="float"))
    coded = await value(talk.api.embeddings.create(model="embed_mean", input="text", encoding_format="base64"))
    data = coded.data[0].embedding
    numbers = (
        list(data)
        if not isinstance(data, str)
        else list(struct.unpack(f"<{len(base64.b64decode(data)) // 4}f", base64.b64decode(data)))
    )
    assert all(math.isclose(a, b, abs_tol=1e-6) for a, b in zip(numbers, plain.data[0].embedding, strict=True))


@case("openai", "dimensions", VECTORS, modes=ONE, why_not=NO_STREAM)
async def dimensions(talk: Talk) -> None:
    """Cut and scaled again."""
    found = await value(talk.api.embeddings.create(model="embed_mean", input="text", dimensions=8))
    assert len(found.data[0].embedding) == 8
    assert math.isclose(sum(number * number for number in found.data[0].embedding), 1, abs_tol=1e-4)


@case("openai", "token ids as inputs", VECTORS, modes=ONE, why_not=NO_STREAM)
async def token_inputs(talk: Talk) -> None:
    """A list of ids, and lists of them."""
    for given, count in (([5, 6, 7], 1), ([[5, 6, 7], [8, 9]], 2)):
        found = await value(talk.api.embeddings.create(model="embed_mean", input=given))
        assert len(found.data) == count


@case("openai", "a thousand inputs", VECTORS, modes=ONE, why_not=NO_STREAM)
async def many_inputs(talk: Talk) -> None:
    """In one call."""
    found = await value(talk.api.embeddings.create(model="embed_mean", input=[f"text {i}" for i in range(1000)]))
    assert len(found.data) == 1000


@case("openai", "rerank", VECTORS, modes=ONE, why_not=NO_STREAM)
async def rerank(talk: Talk) -> None:
    """The best first, through the client's own post."""
    body: dict[str, Any] = {
        "model": "reranker",
        "query": "llama",
        "documents": ["a llama", "a slot", "a GPU"],
        "top_n": 2,
    }
    for path in ("/rerank", talk.url + "/v2/rerank", talk.url + "/rerank"):
        found = await value(talk.api.post(path, body=body | {"return_documents": True}, cast_to=object))
        scores = [result["relevance_score"] for result in found["results"]]
        assert scores == sorted(scores, reverse=True)
        assert len(scores) == 2
        assert all(0 <= score <= 1 for score in scores)
        assert {result["document"]["text"] for result in found["results"]} <= set(body["documents"])


@case("openai", "models", VECTORS, modes=ONE, why_not=NO_STREAM)
async def models(talk: Talk) -> None:
    """The list and one of it."""
    listed = [model.id async for model in items(_pages(talk.api.models.list()))]
    assert {"demo", "eyes", "embed_mean"} <= set(listed)
    one = await value(talk.api.models.retrieve("demo"))
    assert (one.id, one.object) == ("demo", "model")


async def _pages(listed: Any) -> Any:
    return (await value(listed)).data if not hasattr(listed, "__aiter__") else listed

"""Cases of the Anthropic client."""

import contextlib
import json
from dataclasses import replace
from typing import Any

from tests.conformance.strict import COLD, LONG, POISON, crowd, drained
from tests.conformance.table import QUESTION, STREAM, WHOLE, Talk, case, items, raised, read, value

MESSAGES = "Anthropic: messages"
ERRORS = "Anthropic: errors"
ONE = (WHOLE,)
NO_STREAM = "the endpoint does not stream"


def _call(talk: Talk, question: str = QUESTION, **body: Any) -> Any:
    asked: dict[str, Any] = {"model": "demo", "max_tokens": 300}
    asked |= {"messages": [{"role": "user", "content": question}]} | body
    # The newest client has no argument for the temperature any more; the body still takes it.
    extra = {"temperature": 0} | asked.pop("extra_body", {})
    return talk.api.messages.create(**asked, extra_body=extra, stream=talk.stream)


async def say(talk: Talk, question: str = QUESTION, **body: Any) -> dict[str, Any]:
    """A message, whole or put together from its events."""
    if not talk.stream:
        message = await value(_call(talk, question, **body))
        return {
            "blocks": [block.model_dump() for block in message.content],
            "stop_reason": message.stop_reason,
            "stop_sequence": message.stop_sequence,
            "usage": message.usage.model_dump(),
        }
    found: dict[str, Any] = {"blocks": [], "json": ""}
    async for event in items(_call(talk, question, **body)):
        match event.type:
            case "message_start":
                found["usage"] = event.message.usage.model_dump()
            case "content_block_start":
                found["blocks"].append(event.content_block.model_dump())
                found["json"] = ""
            case "content_block_delta":
                _add(found, event.delta)
            case "message_delta":
                found |= {"stop_reason": event.delta.stop_reason, "stop_sequence": event.delta.stop_sequence}
                found["usage"] |= {key: n for key, n in event.usage.model_dump().items() if n is not None}
    return found


def _add(found: dict[str, Any], delta: Any) -> None:
    block = found["blocks"][-1]
    if delta.type == "text_delta":
        block["text"] += delta.text
    elif delta.type == "thinking_delta":
        block["thinking"] += delta.thinking
    elif delta.type == "input_json_delta":
        found["json"] += delta.partial_json
        with contextlib.suppress(ValueError):
            block["input"] = json.loads(found["json"])


def text_of(message: dict[str, Any]) -> str:
    """All text of a message."""
    return "".join(block["text"] for block in message["blocks"] if block["type"] == "text")


def blocks(message: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """The blocks of one kind."""
    return [block for block in message["blocks"] if block["type"] == kind]


def _tools(talk: Talk, lesson: str) -> list[dict[str, Any]]:
    functions = [tool["function"] for tool in talk.taught(lesson)["tools"]]
    return [{"name": f["name"], "description": f["description"], "input_schema": f["parameters"]} for f in functions]


@case("anthropic", "answer", MESSAGES)
async def answer(talk: Talk) -> None:
    """The taught answer, word for word."""
    message = await say(talk)
    assert (text_of(message), message["stop_reason"]) == (talk.answer(), "end_turn")


@case("anthropic", "system", MESSAGES)
async def system(talk: Talk) -> None:
    """A string, and blocks with cache_control."""
    blocks_ = [{"type": "text", "text": "You are a pirate.", "cache_control": {"type": "ephemeral"}}]
    for given in ("You are a pirate.", blocks_):
        assert text_of(await say(talk, "Hello!", system=given)) == talk.taught("pirate-hello")["content"]


@case("anthropic", "system messages behind a question", MESSAGES)
async def later_system(talk: Talk) -> None:
    """In the messages, before the first answer and later; counted, too."""
    pirate = {"role": "system", "content": [{"type": "text", "text": "You are a pirate."}]}
    hello = {"role": "user", "content": "Hello!"}
    lesson = talk.taught("pirate-hello")["content"]
    assert text_of(await say(talk, messages=[hello, pirate])) == lesson
    later = [hello, {"role": "assistant", "content": lesson}, hello, pirate]
    assert (await say(talk, messages=later, max_tokens=9))["blocks"]
    with_note, without = [
        (await value(talk.api.messages.count_tokens(model="demo", messages=turns))).input_tokens
        for turns in (later, later[:-1])
    ]
    assert with_note > without


@case("anthropic", "conversation", MESSAGES)
async def conversation(talk: Talk) -> None:
    """Earlier turns count."""
    lesson = talk.taught("name-alan")
    assert text_of(await say(talk, messages=lesson["messages"])) == lesson["content"]


@case("anthropic", "blocks and documents", MESSAGES)
async def documents(talk: Talk) -> None:
    """Text comes as blocks and as documents of text."""
    source = {"type": "text", "media_type": "text/plain", "data": QUESTION}
    for block in ({"type": "text", "text": QUESTION}, {"type": "document", "source": source}):
        assert text_of(await say(talk, messages=[{"role": "user", "content": [block]}])) == talk.answer()


@case("anthropic", "continued assistant message", MESSAGES)
async def prefill(talk: Talk) -> None:
    """A beginning of the answer is continued."""
    begin = talk.answer().split(" machines")[0]
    turns = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": begin}]
    assert begin + text_of(await say(talk, messages=turns)) == talk.answer()


@case("anthropic", "max_tokens", MESSAGES)
async def length(talk: Talk) -> None:
    """The stop reason says so."""
    message = await say(talk, max_tokens=4)
    assert (message["stop_reason"], message["usage"]["output_tokens"]) == ("max_tokens", 4)


@case("anthropic", "stop_sequences", MESSAGES)
async def stop(talk: Talk) -> None:
    """The matched stop sequence is reported."""
    message = await say(talk, stop_sequences=["nowhere", "endpoint"])
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "endpoint")
    assert text_of(message) == talk.answer().split("endpoint")[0]


@case("anthropic", "temperature, top_p, top_k", MESSAGES)
async def sampling(talk: Talk) -> None:
    """top_k 1 is greedy at any temperature."""
    assert text_of(await say(talk, extra_body={"temperature": 1, "top_k": 1, "top_p": 0.9})) == talk.answer()


@case("anthropic", "usage and cached tokens", MESSAGES)
async def usage(talk: Talk) -> None:
    """Cached prompt tokens are counted apart."""
    counted = await value(
        talk.api.messages.count_tokens(model="demo", messages=[{"role": "user", "content": "Name the planets."}])
    )
    await say(talk, "Name the planets.", max_tokens=1)
    found = (await say(talk, "Name the planets.", max_tokens=1))["usage"]
    assert found["cache_read_input_tokens"] > 0
    assert found["input_tokens"] + found["cache_read_input_tokens"] == counted.input_tokens


@case("anthropic", "count_tokens", MESSAGES, modes=ONE, why_not=NO_STREAM)
async def count_tokens(talk: Talk) -> None:
    """With system, tools and images."""
    asked: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": QUESTION}]}
    plain = (await value(talk.api.messages.count_tokens(**asked))).input_tokens
    more = (await value(talk.api.messages.count_tokens(**asked, system="You are a pirate."))).input_tokens
    most = (await value(talk.api.messages.count_tokens(**asked, tools=_tools(talk, "weather-paris")))).input_tokens
    assert plain < more < most
    seen = await value(talk.api.messages.count_tokens(model="eyes", messages=[_picture(talk, 0)]))
    assert seen.input_tokens > 60


def _picture(talk: Talk, number: int) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png", "data": talk.facts["images"][number]}
    return {"role": "user", "content": [{"type": "image", "source": source}, {"type": "text", "text": "What is it?"}]}


@case("anthropic", "images", MESSAGES)
async def images(talk: Talk) -> None:
    """As base64, where they stand."""
    first, same, other = [
        text_of(await say(talk, model="eyes", messages=[_picture(talk, number)], max_tokens=8)) for number in (0, 0, 1)
    ]
    assert first == same != other


@case("anthropic", "tools", MESSAGES)
async def tools(talk: Talk) -> None:
    """A call is a block."""
    lesson = talk.taught("weather-paris")
    message = await say(talk, messages=lesson["messages"], tools=_tools(talk, "weather-paris"))
    calls = blocks(message, "tool_use")
    assert [(call["name"], call["input"]) for call in calls] == [
        (call["name"], call["arguments"]) for call in lesson["tool_calls"]
    ]
    assert message["stop_reason"] == "tool_use"
    assert all(call["id"].startswith("toolu_") for call in calls)


@case("anthropic", "tool_choice", MESSAGES)
async def tool_choice(talk: Talk) -> None:
    """none, any, one by name; one call alone."""
    body: dict[str, Any] = {"tools": _tools(talk, "weather-paris-two-tools")}
    assert not blocks(await say(talk, **body, tool_choice={"type": "none"}), "tool_use")
    alone = {"disable_parallel_tool_use": True}
    assert len(blocks(await say(talk, **body, tool_choice={"type": "any", **alone}), "tool_use")) == 1
    named = await say(talk, **body, tool_choice={"type": "tool", "name": "add", **alone})
    assert [call["name"] for call in blocks(named, "tool_use")] == ["add"]


@case("anthropic", "long names of tools", MESSAGES)
async def long_names(talk: Talk) -> None:
    """128 characters, as those of MCP servers."""
    (tool,) = _tools(talk, "weather-paris")
    name = "mcp__" + "weather_" * 15 + "xyz"
    assert len(name) == 128
    body: dict[str, Any] = {"tools": [tool | {"name": name}], "tool_choice": {"type": "any"}}
    calls = blocks(await say(talk, talk.taught("weather-paris")["messages"][-1]["content"], **body), "tool_use")
    assert {call["name"] for call in calls} == {name}


@case("anthropic", "tools of the original server", MESSAGES)
async def server_tools(talk: Talk) -> None:
    """The request continues without them."""
    search = {"type": "web_search_20250305", "name": "web_search"}
    assert text_of(await say(talk, tools=[search])) == talk.answer()
    lesson = talk.taught("weather-paris")
    message = await say(talk, messages=lesson["messages"], tools=[search, *_tools(talk, "weather-paris")])
    assert [call["name"] for call in blocks(message, "tool_use")] == ["get_weather"]


@case("anthropic", "structured output", MESSAGES)
async def structured(talk: Talk) -> None:
    """Under both names of the field."""
    schema = {"type": "object", "properties": {"sky": {"enum": ["blue", "grey"]}}, "required": ["sky"]}
    form = {"type": "json_schema", "schema": schema | {"additionalProperties": False}}
    for field in ({"output_config": {"format": form}}, {"output_format": form}):
        message = await say(talk, thinking={"type": "disabled"}, extra_body=field)
        assert json.loads(text_of(message))["sky"] in ("blue", "grey")


@case("anthropic", "tool results", MESSAGES)
async def tool_results(talk: Talk) -> None:
    """Text and errors go back."""
    given = _tools(talk, "umbrella")
    turns = talk.taught("umbrella")["messages"]
    (call,) = blocks(await say(talk, messages=turns, tools=given), "tool_use")
    use = {"type": "tool_use", "id": call["id"], "name": call["name"], "input": call["input"]}
    for more in ({"content": "rain"}, {"content": [{"type": "text", "text": "no rain"}], "is_error": True}):
        result = {"type": "tool_result", "tool_use_id": call["id"], **more}
        back = [*turns, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        assert (await say(talk, messages=back, tools=given, max_tokens=40))["blocks"]


@case("anthropic", "thinking", MESSAGES)
async def thinking(talk: Talk) -> None:
    """Blocks of their own with a signature; disabled means none; a model that cannot goes without."""
    lesson = talk.taught("multiply")
    asked: dict[str, Any] = {"messages": lesson["messages"]}
    message = await say(talk, **asked, max_tokens=2000, thinking={"type": "enabled", "budget_tokens": 1024})
    (block,) = blocks(message, "thinking")
    assert block["thinking"].strip() == lesson["reasoning"]
    assert text_of(message).strip() == lesson["content"]
    assert not blocks(await say(talk, **asked, thinking={"type": "disabled"}), "thinking")
    assert blocks(await say(talk, **asked, thinking={"type": "adaptive"}), "thinking")
    assert not blocks(await say(talk, model="coder", max_tokens=8, thinking={"type": "adaptive"}), "thinking")


@case("anthropic", "budget_tokens", MESSAGES)
async def budget(talk: Talk) -> None:
    """Reasoning is closed after so many tokens."""
    lesson = talk.taught("multiply")
    given = {"messages": lesson["messages"], "max_tokens": 90, "thinking": {"type": "enabled", "budget_tokens": 6}}
    message = await say(talk, **given)
    (block,) = blocks(message, "thinking")
    assert 0 < len(block["thinking"]) < len(lesson["reasoning"])
    assert text_of(message).strip()


@case("anthropic", "metadata and betas", MESSAGES)
async def labels(talk: Talk) -> None:
    """Taken, and without effect."""
    more: dict[str, Any] = {"metadata": {"user_id": "ada"}, "extra_headers": {"anthropic-beta": "anything-1"}}
    assert text_of(await say(talk, **more)) == talk.answer()


@case("anthropic", "events", MESSAGES, modes=(STREAM,), why_not="about events")
async def events(talk: Talk) -> None:
    """In the order that the client's own helper needs."""
    kinds = [event.type async for event in items(_call(talk))]
    assert [kind for kind in kinds if kind not in ("content_block_delta", "ping")] == [
        "message_start",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


@case("anthropic", "models", MESSAGES, modes=ONE, why_not=NO_STREAM)
async def models(talk: Talk) -> None:
    """The list and one of it, in Anthropic's form."""
    listed = await value(talk.api.models.list())
    assert "demo" in [model.id for model in listed.data]
    one = await value(talk.api.models.retrieve("demo"))
    assert (one.id, one.type) == ("demo", "model")


async def _status(talk: Talk, status: int, kind: str, name: str = "APIStatusError", **body: Any) -> Any:
    error = await raised(lambda: _call(talk, **body), getattr(talk.package, name))
    assert (error.status_code, error.body["error"]["type"]) == (status, kind), error
    assert error.body["type"] == "error"
    return error


@case("anthropic", "an invalid value", ERRORS)
async def invalid(talk: Talk) -> None:
    """Out of range, missing, a block that there is not."""
    for extra in ({"temperature": 2}, {"top_k": "x"}, {"max_tokens": 0}, {"container": "c"}):
        await _status(talk, 400, "invalid_request_error", "BadRequestError", extra_body=extra)
    video = [{"role": "user", "content": [{"type": "video", "source": {}}]}]
    await _status(talk, 400, "invalid_request_error", "BadRequestError", messages=video)


@case("anthropic", "a prompt that is too long", ERRORS)
async def too_long(talk: Talk) -> None:
    """In Anthropic's words."""
    error = await _status(talk, 400, "invalid_request_error", "BadRequestError", question="word " * 3000)
    assert error.body["error"]["message"].startswith("prompt is too long: ")


@case("anthropic", "a capability that the model lacks", ERRORS)
async def capability(talk: Talk) -> None:
    """An image for a model that sees none."""
    await _status(talk, 400, "invalid_request_error", "BadRequestError", messages=[_picture(talk, 0)])


@case("anthropic", "a template that refuses", ERRORS)
async def template(talk: Talk) -> None:
    """A template that refuses."""
    await _status(talk, 400, "invalid_request_error", "BadRequestError", model="refusing")


@case("anthropic", "a foreign Host", ERRORS)
async def host(talk: Talk) -> None:
    """The Host header of another machine."""
    await _status(talk, 403, "permission_error", "PermissionDeniedError", extra_headers={"Host": "evil.example"})


@case("anthropic", "an unknown model", ERRORS)
async def unknown_model(talk: Talk) -> None:
    """not_found_error."""
    await _status(talk, 404, "not_found_error", "NotFoundError", model="nobody")


@case("anthropic", "an unknown route, method or media type", ERRORS, modes=ONE, why_not="not an answer")
async def routes(talk: Talk) -> None:
    """404, 405, 415."""
    await raised(lambda: talk.api.get("/v1/messages/nowhere", cast_to=object), talk.package.NotFoundError)
    error = await raised(lambda: talk.api.get("/v1/messages", cast_to=object), talk.package.APIStatusError)
    assert error.status_code == 405
    await _status(talk, 415, "invalid_request_error", extra_headers={"Content-Type": "text/plain"})


@case("anthropic", "a body that is too large", ERRORS, modes=ONE, why_not="not an answer")
async def too_large(talk: Talk) -> None:
    """A body of 11 MiB."""
    await _status(talk, 413, "request_too_large", question="x" * (11 * 2**20))


@case("anthropic", "a model that does not fit", ERRORS, stage="tight")
async def no_room(talk: Talk) -> None:
    """Nothing fits: told not to try again."""
    error = await _status(talk, 503, "api_error")
    assert error.response.headers["x-should-retry"] == "false"


@case("anthropic", "no key", ERRORS, stage="strict")
async def no_key(talk: Talk) -> None:
    """A key that is not good."""
    await _status(_with_key(talk, "nonsense"), 401, "authentication_error", "AuthenticationError")


def _with_key(talk: Talk, key: str) -> Talk:
    return replace(talk, api=type(talk.api)(base_url=talk.url, api_key=key, max_retries=0))


@case("anthropic", "a quota that is used up", ERRORS, stage="strict")
async def quota(talk: Talk) -> None:
    """A key with one request a minute has had it."""
    limited = _with_key(talk, talk.facts["limited_key"])
    with contextlib.suppress(talk.package.RateLimitError):
        await read(lambda: _call(limited, max_tokens=1))
    error = await _status(limited, 429, "rate_limit_error", "RateLimitError")
    assert "anthropic-ratelimit-requests-limit" in error.response.headers


@case("anthropic", "every place taken", ERRORS, stage="strict")
async def busy(talk: Talk) -> None:
    """overloaded_error."""
    with crowd(talk):
        error = await _status(talk, 529, "overloaded_error")
    assert int(error.response.headers["retry-after"]) >= 1


@case("anthropic", "a request that stops runners", ERRORS, stage="strict")
async def poison(talk: Talk) -> None:
    """A request that kills its runners is not sent to a third."""
    await _status(talk, 500, "api_error", model="victim-anthropic", extra_body={"options": {"seed": POISON}})


@case("anthropic", "no replica to be had", ERRORS, stage="strict")
async def no_replica(talk: Talk) -> None:
    """overloaded_error, and when to come again."""
    with drained(talk):
        error = await _status(talk, 529, "overloaded_error", model=COLD)
    assert int(error.response.headers["retry-after"]) >= 1


@case("anthropic", "a deadline, and an error in a stream", ERRORS, stage="hurried")
async def deadline(talk: Talk) -> None:
    """504, or an event in the middle of a stream."""
    error = await raised(lambda: _call(talk, max_tokens=LONG), talk.package.APIStatusError)
    assert error.body["error"]["type"] == "timeout_error"
    assert talk.stream or error.status_code == 504

"""Cases of the Ollama client."""

import base64
import inspect
import json
import math
from typing import Any

from tests.conformance.openai_chat import SCHEMA
from tests.conformance.strict import COLD, LONG, POISON, crowd, drained
from tests.conformance.table import QUESTION, WHOLE, NotInClient, Talk, case, items, raised, value

ANSWERS = "Ollama: chat and generate"
MODELS = "Ollama: embeddings and models"
ERRORS = "Ollama: errors"
ONE = (WHOLE,)
NO_STREAM = "the endpoint does not stream"
GREEDY = {"temperature": 0}


async def chat(talk: Talk, question: str = QUESTION, **body: Any) -> dict[str, Any]:
    """POST /api/chat: the parts put together."""
    asked = {"model": "demo", "messages": [{"role": "user", "content": question}], "options": GREEDY} | body
    return await _joined(talk, talk.api.chat(**asked, stream=talk.stream), is_chat=True)


async def generate(talk: Talk, prompt: str = QUESTION, **body: Any) -> dict[str, Any]:
    """POST /api/generate: the parts put together."""
    asked = {"model": "demo", "prompt": prompt, "options": GREEDY} | body
    return await _joined(talk, talk.api.generate(**asked, stream=talk.stream), is_chat=False)


async def _joined(talk: Talk, answer: Any, *, is_chat: bool) -> dict[str, Any]:
    parts = [part async for part in items(answer)] if talk.stream else [await value(answer)]
    holders = [part.message for part in parts] if is_chat else parts
    calls = [call.function for holder in holders for call in getattr(holder, "tool_calls", None) or []]
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    return {
        "text": "".join((holder.content if is_chat else holder.response) or "" for holder in holders),
        "thinking": "".join(getattr(holder, "thinking", None) or "" for holder in holders),
        "calls": [(call.name, dict(call.arguments)) for call in calls],
        "logprobs": [entry for part in parts for entry in getattr(part, "logprobs", None) or []],
        "last": parts[-1],
    }


@case("ollama", "chat", ANSWERS)
async def chat_answer(talk: Talk) -> None:
    """The taught answer, word for word, and the metrics."""
    found = await chat(talk)
    last = found["last"]
    assert (found["text"], last.done_reason) == (talk.answer(), "stop")
    assert last.total_duration >= last.eval_duration > 0
    assert min(last.eval_count, last.prompt_eval_count) > 5
    assert last.load_duration is not None
    assert last.created_at


@case("ollama", "generate", ANSWERS)
async def generate_answer(talk: Talk) -> None:
    """The same through the template of a single turn, with a context that can be sent back."""
    found = await generate(talk)
    assert found["text"] == talk.answer()
    assert len(found["last"].context) > 10
    more = await generate(talk, "Thank you!", context=found["last"].context)
    assert more["last"].prompt_eval_count > found["last"].prompt_eval_count


@case("ollama", "roles", ANSWERS)
async def roles(talk: Talk) -> None:
    """A system message, a system text, and earlier turns."""
    pirate = talk.taught("pirate-hello")["content"]
    turns = [{"role": "system", "content": "You are a pirate."}, {"role": "user", "content": "Hello!"}]
    assert (await chat(talk, messages=turns))["text"] == pirate
    assert (await generate(talk, "Hello!", system="You are a pirate."))["text"] == pirate
    lesson = talk.taught("name-grace")
    assert (await chat(talk, messages=lesson["messages"]))["text"] == lesson["content"]


@case("ollama", "raw", ANSWERS)
async def raw(talk: Talk) -> None:
    """No template, and no context."""
    found = await generate(talk, "Puna is", raw=True, options=GREEDY | {"num_predict": 6})
    assert found["last"].done_reason == "length"
    assert not found["last"].context


@case("ollama", "template", ANSWERS)
async def template(talk: Talk) -> None:
    """One of the client's own, in Jinja."""
    written = "{{ messages[0].content }}"
    options = GREEDY | {"num_predict": 6}
    plain = await generate(talk, "Puna is", raw=True, options=options)
    assert (await generate(talk, "Puna is", template=written, options=options))["text"] == plain["text"]


@case("ollama", "suffix", ANSWERS)
async def suffix(talk: Talk) -> None:
    """The text behind the gap changes the text that fills it."""
    body: dict[str, Any] = {"model": "coder", "options": GREEDY | {"num_predict": 8}}
    one = await generate(talk, "def add(a, b):", suffix="\nprint(add(1, 2))", **body)
    other = await generate(talk, "def add(a, b):", suffix="x" * 40, **body)
    assert one["text"] != other["text"]


@case("ollama", "options", ANSWERS)
async def options(talk: Talk) -> None:
    """Limits, stop strings, seeds, filters."""
    short = await chat(talk, options=GREEDY | {"num_predict": 4})
    assert (short["last"].done_reason, short["last"].eval_count) == ("length", 4)
    stopped = await chat(talk, options=GREEDY | {"stop": ["endpoint"]})
    assert stopped["text"] == talk.answer().split("endpoint")[0]
    assert (await chat(talk, options={"temperature": 2, "top_k": 1}))["text"] == talk.answer()
    drawn = {"temperature": 1.5, "seed": 4, "num_predict": 20, "top_p": 0.95, "min_p": 0.01, "typical_p": 1.0}
    assert (await chat(talk, "Hi", options=drawn))["text"] == (await chat(talk, "Hi", options=drawn))["text"]
    more = {"repeat_penalty": 1.1, "presence_penalty": 0.1, "frequency_penalty": 0.1, "num_ctx": 512, "mirostat": 1}
    assert (await chat(talk, options=GREEDY | more))["text"]


@case("ollama", "keep_alive, load and unload", ANSWERS, modes=ONE, why_not="one object either way")
async def keep_alive(talk: Talk) -> None:
    """An empty prompt loads, with keep_alive 0 it unloads."""
    loaded = await value(talk.api.generate(model="plain", prompt="", keep_alive="5m"))
    assert (loaded.done_reason, loaded.response) == ("load", "")
    assert "plain:latest" in [model.model for model in (await value(talk.api.ps())).models]
    assert (await value(talk.api.generate(model="plain", prompt="", keep_alive=0))).done_reason == "unload"
    assert (await value(talk.api.chat(model="demo", messages=[]))).done_reason == "load"


@case("ollama", "think", ANSWERS)
async def think(talk: Talk) -> None:
    """On, off, and how hard."""
    lesson = talk.taught("multiply")
    for wanted in (True, None, "low", "high"):
        found = await chat(talk, messages=lesson["messages"], think=wanted)
        assert found["thinking"].strip()
        assert found["text"].strip()
    assert not (await chat(talk, messages=lesson["messages"], think=False))["thinking"]
    found = await generate(talk, lesson["messages"][0]["content"], think=True)
    assert found["thinking"].strip() == lesson["reasoning"]


@case("ollama", "format", ANSWERS)
async def format_(talk: Talk) -> None:
    """JSON, and a schema."""
    schema: Any = SCHEMA
    assert isinstance(json.loads((await chat(talk, format="json", think=False))["text"]), dict)
    assert set(json.loads((await chat(talk, format=schema))["text"])) == {"name", "size"}
    assert set(json.loads((await generate(talk, format=schema))["text"])) == {"name", "size"}


@case("ollama", "tools", ANSWERS)
async def tools(talk: Talk) -> None:
    """Calls come whole, results go back."""
    lesson = talk.taught("weather-parallel")
    found = await chat(talk, messages=lesson["messages"], tools=lesson["tools"])
    assert found["calls"] == [(call["name"], call["arguments"]) for call in lesson["tool_calls"]]
    back = [
        *lesson["messages"],
        {"role": "assistant", "tool_calls": [{"function": {"name": n, "arguments": a}} for n, a in found["calls"]]},
        {"role": "tool", "content": "sun", "tool_name": "get_weather"},
    ]
    again = await chat(talk, messages=back, tools=lesson["tools"], options=GREEDY | {"num_predict": 30})
    assert again["last"].prompt_eval_count > found["last"].prompt_eval_count


@case("ollama", "images", ANSWERS)
async def images(talk: Talk) -> None:
    """Of a message, and of a prompt."""

    async def see(number: int) -> str:
        picture = base64.b64decode(talk.facts["images"][number])
        turns = [{"role": "user", "content": "What do you see?", "images": [picture]}]
        found = await chat(talk, model="eyes", messages=turns, options=GREEDY | {"num_predict": 8})
        return str(found["text"])

    assert await see(0) == await see(0) != await see(1)
    picture = base64.b64decode(talk.facts["images"][0])
    asked = await generate(
        talk, "What do you see?", model="eyes", images=[picture], options=GREEDY | {"num_predict": 8}
    )
    assert asked["text"] == await see(0)


@case("ollama", "logprobs", ANSWERS)
async def logprobs(talk: Talk) -> None:
    """One entry for each token."""
    if "logprobs" not in inspect.signature(talk.api.chat).parameters:
        raise NotInClient("no such field")
    found = await chat(talk, logprobs=True, top_logprobs=3, options=GREEDY | {"num_predict": 6})
    assert len(found["logprobs"]) == 6
    assert all(len(entry.top_logprobs) == 3 for entry in found["logprobs"])


@case("ollama", "embed", MODELS, modes=ONE, why_not=NO_STREAM)
async def embed(talk: Talk) -> None:
    """One, several, cut."""
    found = await value(talk.api.embed(model="embed_mean", input=["one", "two"]))
    assert len(found.embeddings) == 2
    assert math.isclose(sum(number * number for number in found.embeddings[0]), 1, abs_tol=1e-4)
    assert len((await value(talk.api.embed(model="embed_mean", input="one", dimensions=8))).embeddings[0]) == 8
    assert (await value(talk.api.embeddings(model="embed_mean", prompt="one"))).embedding


@case("ollama", "list, show, ps", MODELS, modes=ONE, why_not=NO_STREAM)
async def pages(talk: Talk) -> None:
    """Models are listed, described, and listed again once loaded."""
    assert "demo:latest" in [model.model for model in (await value(talk.api.list())).models]
    shown = await value(talk.api.show("eyes"))
    assert {"completion", "vision"} <= set(shown.capabilities)
    assert shown.modelinfo["general.architecture"]
    await chat(talk, options={"num_predict": 1})
    running = {model.model: model for model in (await value(talk.api.ps())).models}
    assert running["demo:latest"].size > 1_000_000


@case("ollama", "copy and delete", MODELS, modes=ONE, why_not=NO_STREAM)
async def copy_delete(talk: Talk) -> None:
    """A second name, and its end."""
    name = f"copy-{id(talk)}"
    try:
        assert (await value(talk.api.copy("demo", name))).status == "success"
        assert (await chat(talk, model=name))["text"] == talk.answer()
    finally:
        assert (await value(talk.api.delete(name))).status == "success"
    assert f"{name}:latest" not in [model.model for model in (await value(talk.api.list())).models]


@case("ollama", "create", MODELS)
async def create(talk: Talk) -> None:
    """From a model, with a system text of its own; progress comes as lines."""
    name = f"made-{id(talk)}"
    made = talk.api.create(model=name, from_="demo", system="You are a pirate.", stream=talk.stream)
    lines = [line.status async for line in items(made)] if talk.stream else [(await value(made)).status]
    try:
        assert lines[-1] == "success"
        assert (await chat(talk, "Hello!", model=name))["text"] == talk.taught("pirate-hello")["content"]
    finally:
        await value(talk.api.delete(name))


async def _error(talk: Talk, status: int, text: str, *, in_stream: bool = False, **body: Any) -> Any:
    """`in_stream`: the error comes behind the beginning of an answer, where this client knows no status."""
    error = await raised(lambda: _read(talk, **body), talk.package.ResponseError)
    assert error.status_code == (-1 if in_stream else status), error
    assert text in error.error, error
    return error


async def _read(talk: Talk, **body: Any) -> None:
    await chat(talk, **body)


@case("ollama", "an invalid value", ERRORS)
async def invalid(talk: Talk) -> None:
    """In Ollama's words."""
    await _error(talk, 400, 'option "num_ctx" must be', options={"num_ctx": 1})
    try:
        await _error(talk, 400, "invalid think value", think="very")
    except ValueError as error:  # some releases look at it themselves, and send nothing
        if type(error).__name__ != "ValidationError":
            raise
    await _error(talk, 400, "top_logprobs must be between 0 and 20", options={}, logprobs=True, top_logprobs=21)
    await _error(talk, 400, "invalid message role", messages=[{"role": "judge", "content": "x"}])


@case("ollama", "a capability that the model lacks", ERRORS)
async def capability(talk: Talk) -> None:
    """Chat, thinking, tools, insert, vision, embeddings."""
    await _error(talk, 400, '"embed_mean" does not support chat', model="embed_mean")
    await _error(talk, 400, '"plain" does not support thinking', model="plain", think=True)
    await _error(
        talk, 400, '"plain" does not support tools', model="plain", tools=talk.taught("weather-paris")["tools"]
    )
    error = await raised(
        lambda: talk.api.generate(model="plain", prompt="x", suffix="y", stream=talk.stream), talk.package.ResponseError
    )
    assert '"plain" does not support insert' in error.error
    picture = base64.b64decode(talk.facts["images"][0])
    await _error(talk, 400, "does not support vision", messages=[{"role": "user", "content": "x", "images": [picture]}])
    error = await raised(lambda: talk.api.embed(model="demo", input="x"), talk.package.ResponseError)
    assert (error.status_code, error.error) == (501, "this model does not support embeddings")


@case("ollama", "a template that refuses", ERRORS)
async def refusing(talk: Talk) -> None:
    """A template that refuses."""
    await _error(talk, 400, "not today", model="refusing")


@case("ollama", "an unknown model", ERRORS)
async def unknown_model(talk: Talk) -> None:
    """With its name."""
    await _error(talk, 404, "model 'nobody' not found", model="nobody")
    error = await raised(lambda: talk.api.copy("nobody", "other"), talk.package.ResponseError)
    assert (error.status_code, error.error) == (404, 'model "nobody" not found')


@case("ollama", "a model that does not fit", ERRORS, stage="tight")
async def no_room(talk: Talk) -> None:
    """In Ollama's words."""
    await _error(talk, 500, "model requires more system memory (")


@case("ollama", "what is not implemented", ERRORS, modes=ONE, why_not="refused before it streams")
async def not_implemented(talk: Talk) -> None:
    """Nothing is pushed, nothing is quantized."""
    error = await raised(lambda: talk.api.push("demo"), talk.package.ResponseError)
    assert error.status_code == 501
    made = lambda: talk.api.create(model="small", from_="demo", quantize="q4_0")  # noqa: E731
    assert (await raised(made, talk.package.ResponseError)).status_code == 501


@case("ollama", "no key", ERRORS, stage="strict")
async def no_key(talk: Talk) -> None:
    """A client without a good key."""
    stranger = type(talk.api)(host=talk.url, headers={"Authorization": "Bearer nonsense"})
    error = await raised(stranger.list, talk.package.ResponseError)
    assert error.status_code == 401


@case("ollama", "every place taken", ERRORS, stage="strict")
async def busy(talk: Talk) -> None:
    """In Ollama's words, two spaces included."""
    with crowd(talk):
        await _error(talk, 503, "server busy, please try again.  maximum pending requests exceeded")


@case("ollama", "a request that stops runners", ERRORS, stage="strict")
async def poison(talk: Talk) -> None:
    """A request that kills its runners is not sent to a third."""
    await _error(talk, 500, "stopped two model runners", model="victim-ollama", options={"seed": POISON})


@case("ollama", "no replica to be had", ERRORS, stage="strict")
async def no_replica(talk: Talk) -> None:
    """503, and a text."""
    with drained(talk):
        await _error(talk, 503, "", model=COLD)


@case("ollama", "a deadline, and an error in a stream", ERRORS, stage="hurried")
async def deadline(talk: Talk) -> None:
    """504, or a line in the middle of a stream."""
    await _error(talk, 504, "request timed out", options={"num_predict": LONG}, in_stream=talk.stream)

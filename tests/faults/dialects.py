"""The same questions in three dialects and gRPC, and what a client has read of each answer."""

import base64
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import grpc
import httpx
from google.protobuf.json_format import MessageToDict

from protos import inference_pb2, inference_pb2_grpc, runner_pb2
from tests.faults.load import COLOURS, DONE, TOOL
from tests.integration.runner.pictures import image_file, picture

QUESTION = "What is Puna?"
TOKENS = 20
# The answer forgets its beginning after about a third.
SHIFTED_CONTEXT, SHIFTED_TOKENS = 64, 60
# A prompt is computed in other batches than tokens one by one.
LOGPROB_DIFFERENCE_MAX = 0.01
TEXT_MODEL, IMAGE_MODEL = "demo", "eyes"
WEATHER = "What is the weather in Paris?"  # the demo model was taught to call this tool
WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "The name of the city."}},
            "required": ["city"],
        },
    },
}
# Of each kind of answer, the dialects that have it.
KINDS: Mapping[str, tuple[str, ...]] = {
    "greedy": ("ollama", "openai", "anthropic", "grpc"),
    "seeded": ("ollama", "openai", "grpc"),
    "grammar": ("ollama", "openai", "anthropic", "grpc"),
    "tools": ("ollama", "openai", "anthropic", "grpc"),
    "n": ("openai",),
    "logprobs": ("ollama", "openai", "grpc"),
    "shift": ("ollama", "grpc"),
    "image": ("ollama", "openai", "anthropic", "grpc"),
}


@dataclass(frozen=True, slots=True, order=True)
class Lane:
    """One kind of answer in one dialect."""

    kind: str
    dialect: str

    @property
    def model(self) -> str:
        return IMAGE_MODEL if self.kind == "image" else TEXT_MODEL

    @property
    def tokens(self) -> int:
        """The most that it generates, of each choice."""
        return {"shift": SHIFTED_TOKENS, "tools": 64, "grammar": 64}.get(self.kind, TOKENS)


LANES = tuple(Lane(kind, dialect) for kind, dialects in KINDS.items() for dialect in dialects)


@dataclass(slots=True)
class Answer:
    """Everything that a client has read. `error`: reason of its end."""

    said: dict[str, str] = field(default_factory=dict)
    ends: list[str] = field(default_factory=list)
    terminals: int = 0
    logprobs: list[float] = field(default_factory=list)
    usage: tuple[int, int] = (0, 0)
    error: str = ""
    request_id: str = ""

    def add(self, place: str, text: Any) -> None:
        """Append to one part of the answer."""
        if text:
            self.said[place] = self.said.get(place, "") + str(text)

    def add_token(self, place: str, token: Mapping[str, Any]) -> None:
        """Append a token with its log-probability."""
        self.add(place, f"[{token.get('token', token.get('piece'))}]")
        self.logprobs.append(token.get("logprob", 0.0))

    def differs_from(self, other: "Answer") -> str:
        """Name the first part that must not depend on what broke and does; empty: they are the same."""
        for name in ("error", "terminals", "ends", "usage", "said"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if name == "ends":
                mine, theirs = sorted(mine), sorted(theirs)
            if mine != theirs:
                return f"{name}: {mine!r} != {theirs!r}"
        pairs = zip(self.logprobs, other.logprobs, strict=True)
        worst = max((abs(mine - theirs) for mine, theirs in pairs), default=0.0)
        return f"logprobs differ by {worst:.4f}" if worst > LOGPROB_DIFFERENCE_MAX else ""


@cache
def image() -> bytes:
    """The file of a picture."""
    return image_file(picture(1))


def body(lane: Lane) -> dict[str, Any]:
    """Return the JSON of a request."""
    makers = {"ollama": _ollama_body, "openai": _openai_body, "anthropic": _anthropic_body}
    return {"model": lane.model, "stream": True, **makers[lane.dialect](lane)}


def _ollama_body(lane: Lane) -> dict[str, Any]:
    options: dict[str, Any] = {"temperature": 0, "num_predict": lane.tokens}
    message: dict[str, Any] = {"role": "user", "content": QUESTION}
    more: dict[str, Any] = {}
    match lane.kind:
        case "seeded":
            options |= {"temperature": 0.8, "seed": 7}
        case "grammar":
            more["format"] = COLOURS
        case "tools":
            message["content"] = WEATHER
            more["tools"] = [WEATHER_TOOL]
        case "logprobs":
            more |= {"logprobs": True, "top_logprobs": 2}
        case "shift":
            options |= {"num_ctx": SHIFTED_CONTEXT, "repeat_penalty": 1.3, "temperature": 1.0, "seed": 3}
        case "image":
            message["images"] = [base64.b64encode(image()).decode()]
    return {"messages": [message], "options": options, **more}


def _openai_body(lane: Lane) -> dict[str, Any]:
    content: Any = QUESTION
    more: dict[str, Any] = {}
    match lane.kind:
        case "seeded":
            more = {"temperature": 0.8, "seed": 7}
        case "grammar":
            more["response_format"] = {"type": "json_schema", "json_schema": {"name": "c", "schema": COLOURS}}
        case "tools":
            more = {"tools": [TOOL], "tool_choice": "required"}
        case "n":
            more = {"temperature": 0.8, "seed": 11, "n": 2}
        case "logprobs":
            more = {"logprobs": True, "top_logprobs": 2}
        case "image":
            url = "data:image/png;base64," + base64.b64encode(image()).decode()
            content = [{"type": "text", "text": QUESTION}, {"type": "image_url", "image_url": {"url": url}}]
    message = {"role": "user", "content": content}
    usage = {"include_usage": True}
    return {"messages": [message], "temperature": 0, "max_tokens": lane.tokens, "stream_options": usage, **more}


def _anthropic_body(lane: Lane) -> dict[str, Any]:
    content: Any = QUESTION
    more: dict[str, Any] = {}
    match lane.kind:
        case "grammar":
            more["output_config"] = {"format": {"type": "json_schema", "schema": COLOURS}}
        case "tools":
            more = {"tools": [{"name": "paint", "input_schema": COLOURS}], "tool_choice": {"type": "any"}}
        case "image":
            source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(image()).decode()}
            content = [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]
    message = {"role": "user", "content": content}
    return {"messages": [message], "temperature": 0, "max_tokens": lane.tokens, **more}


def grpc_request(lane: Lane) -> inference_pb2.ChatRequest:
    """Return the request of a lane of gRPC."""
    options = inference_pb2.AnswerOptions(sampling=runner_pb2.Sampling(temperature=0), max_tokens=lane.tokens)
    request = inference_pb2.ChatRequest(model=lane.model, options=options)
    message = request.messages.add(role="user", content=QUESTION)
    options = request.options
    match lane.kind:
        case "seeded":
            options.sampling.temperature, options.sampling.seed = 0.8, 7
        case "grammar":
            options.json_schema = json.dumps(COLOURS)
        case "tools":
            request.tools.add(name="paint", parameters=json.dumps(COLOURS))
            request.tool_mode = inference_pb2.TOOL_MODE_REQUIRED
        case "logprobs":
            options.top_logprobs = 2
        case "shift":
            options.context_tokens = SHIFTED_CONTEXT
            options.sampling.temperature, options.sampling.seed = 1.0, 3
            options.sampling.repeat_penalty = 1.3
        case "image":
            message.images.append(image())
    return request


async def read(
    http: httpx.AsyncClient, stub: "inference_pb2_grpc.InferenceAsyncStub", lane: Lane, answer: Answer
) -> None:
    """Read one answer to its end. `answer` can be watched as it fills; never raises for what a server can do."""
    try:
        if lane.dialect == "grpc":
            await _read_grpc(stub, lane, answer)
        else:
            await _read_http(http, lane, answer)
    except (httpx.HTTPError, grpc.aio.AioRpcError) as error:
        answer.error = answer.error or f"{type(error).__name__}: {error}"


async def _read_grpc(stub: "inference_pb2_grpc.InferenceAsyncStub", lane: Lane, answer: Answer) -> None:
    events = stub.Chat(grpc_request(lane), timeout=300)
    answer.request_id = str(dict(await events.initial_metadata())["x-request-id"])
    async for event in events:
        match event.WhichOneof("event"):
            case "delta":
                delta = event.delta
                answer.add("content", delta.content)
                answer.add("reasoning", delta.reasoning)
                for call in delta.tool_calls:
                    answer.add(f"call {call.index}", call.name + call.arguments)
                if lane.kind == "logprobs":
                    for token in delta.tokens:
                        answer.add_token("tokens", MessageToDict(token))
            case "done":
                done = event.done
                answer.ends.append(runner_pb2.DoneReason.Name(done.reason))
                answer.usage = (done.prompt_tokens, done.completion_tokens)
                answer.terminals += 1


async def _read_http(http: httpx.AsyncClient, lane: Lane, answer: Answer) -> None:
    paths = {"ollama": "/api/chat", "openai": "/v1/chat/completions", "anthropic": "/v1/messages"}
    takers = {"ollama": _take_ollama, "openai": _take_openai, "anthropic": _take_anthropic}
    async with http.stream("POST", paths[lane.dialect], json=body(lane)) as response:
        answer.request_id = response.headers["x-request-id"]
        if response.status_code != httpx.codes.OK:
            answer.error = f"{response.status_code} {(await response.aread()).decode()}"
            return
        async for event in _objects(response):
            if event is None:
                answer.terminals += 1
            elif "error" in event:
                answer.error = str(event["error"])
            else:
                takers[lane.dialect](answer, event)


async def _objects(response: httpx.Response) -> AsyncIterator[dict[str, Any] | None]:
    """Objects of a stream of lines or of server-sent events; None for OpenAI's last one."""
    async for line in response.aiter_lines():
        text = line.removeprefix("data: ")
        if text == DONE:
            yield None
        elif text.lstrip().startswith("{"):
            yield json.loads(text)


def _take_ollama(answer: Answer, event: dict[str, Any]) -> None:
    message = event["message"]
    answer.add("content", message["content"])
    answer.add("reasoning", message.get("thinking"))
    for call in message.get("tool_calls") or ():
        answer.add("calls", json.dumps(call["function"]))
    for token in event.get("logprobs") or ():
        answer.add_token("tokens", token)
    if event["done"]:
        answer.ends.append(event["done_reason"])
        answer.usage = (event["prompt_eval_count"], event["eval_count"])
        answer.terminals += 1


def _take_openai(answer: Answer, event: dict[str, Any]) -> None:
    if usage := event.get("usage"):
        answer.usage = (usage["prompt_tokens"], usage["completion_tokens"])
    for choice in event["choices"]:
        index, delta = choice["index"], choice["delta"]
        answer.add(f"{index} content", delta.get("content"))
        answer.add(f"{index} reasoning", delta.get("reasoning_content"))
        for call in delta.get("tool_calls") or ():
            function = call["function"]
            text = (function.get("name") or "") + (function.get("arguments") or "")
            answer.add(f"{index} call {call['index']}", text)
        for token in (choice.get("logprobs") or {}).get("content") or ():
            answer.add_token(f"{index} tokens", token)
        if choice.get("finish_reason"):
            answer.ends.append(f"{index} {choice['finish_reason']}")


def _take_anthropic(answer: Answer, event: dict[str, Any]) -> None:
    match event["type"]:
        case "content_block_start":
            block = event["content_block"]
            answer.add(f"{event['index']} block", f"{block['type']} {block.get('name', '')}")
        case "content_block_delta":
            delta = event["delta"]
            text = delta.get("text") or delta.get("thinking") or delta.get("partial_json")
            answer.add(f"{event['index']} {delta['type']}", text)
        case "message_delta":
            usage = event["usage"]
            prompt_tokens = usage["input_tokens"] + usage["cache_read_input_tokens"]
            answer.ends.append(event["delta"]["stop_reason"])
            answer.usage = (prompt_tokens, usage["output_tokens"])
        case "message_stop":
            answer.terminals += 1

"""A client of puna.v1.Inference for Python programs: one call for a whole answer, one for its pieces.

    async with Client("127.0.0.1:11435") as puna:
        answer = await puna.chat("demo", "What is Puna?")
        print(answer.text)

Messages are a text (one user message) or `ChatMessage`s; docs/api.md has a complete example with tools. Every method
raises the types of `common.errors`.
"""

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from common.errors import InvalidRequest
from common.grpc.client import call_metadata, open_channel
from common.grpc.errors import domain_errors, received
from protos import inference_pb2, inference_pb2_grpc, runner_pb2, scheduler_pb2, store_pb2

Messages = str | Sequence[inference_pb2.ChatMessage]
_LEVELS = {
    "low": inference_pb2.THINK_LEVEL_LOW,
    "medium": inference_pb2.THINK_LEVEL_MEDIUM,
    "high": inference_pb2.THINK_LEVEL_HIGH,
    "max": inference_pb2.THINK_LEVEL_MAX,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A tool call of an answer."""

    id: str
    name: str
    arguments_text: str

    @property
    def arguments(self) -> Any:
        """The arguments as a value.

        Raises:
            json.JSONDecodeError: the answer was cut, or its model wrote something else.
        """
        return json.loads(self.arguments_text or "{}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A whole answer."""

    text: str
    reasoning: str
    calls: tuple[Call, ...]
    done: inference_pb2.Done

    def message(self) -> inference_pb2.ChatMessage:
        """Return the answer as the next turn of its conversation."""
        calls = [
            inference_pb2.ToolCall(id=call.id, name=call.name, arguments=call.arguments_text) for call in self.calls
        ]
        return inference_pb2.ChatMessage(
            role="assistant", content=self.text, reasoning=self.reasoning, tool_calls=calls
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that models may call. `parameters` is the JSON schema of its arguments."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | None = None
    strict: bool = False

    def to_proto(self) -> inference_pb2.Tool:
        """Translate to the service's type."""
        parameters = "" if self.parameters is None else json.dumps(self.parameters)
        return inference_pb2.Tool(
            name=self.name, description=self.description, parameters=parameters, strict=self.strict
        )


class Client:
    """One connection; any number of calls may run on it at once."""

    def __init__(self, address: str, *, key: str = "", timeout_s: float = 600.0) -> None:
        """`timeout_s` is for one whole answer, loading included. `key`: where the gateway asks for one."""
        self._address = address
        self._timeout_s = timeout_s
        self._credentials = (("authorization", f"Bearer {key}"),) if key else ()

    async def __aenter__(self) -> Self:
        self._channel = open_channel(self._address)
        self.stub = inference_pb2_grpc.InferenceStub(self._channel)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def chat(
        self,
        model: str,
        messages: Messages,
        *,
        on_piece: Callable[[inference_pb2.Delta], None] = lambda _piece: None,
        **options: Any,
    ) -> Answer:
        """Return a whole answer; `on_piece` gets each piece. Options as in `stream`.

        Raises:
            PunaError: the service refused, or failed.
        """
        text, reasoning = "", ""
        calls: list[list[str]] = []
        done = inference_pb2.Done()
        async for event in self.stream(model, messages, **options):
            if event.WhichOneof("event") == "done":
                done = event.done
            if event.WhichOneof("event") != "delta":
                continue
            on_piece(event.delta)
            text += event.delta.content
            reasoning += event.delta.reasoning
            for piece in event.delta.tool_calls:
                if piece.index == len(calls):
                    calls.append([piece.id, piece.name, ""])
                calls[piece.index][2] += piece.arguments
        found = tuple(Call(id=id_, name=name, arguments_text=arguments) for id_, name, arguments in calls)
        return Answer(text=text, reasoning=reasoning, calls=found, done=done)

    async def stream(
        self,
        model: str,
        messages: Messages,
        *,
        tools: Sequence[Tool] = (),
        tool_choice: str = "auto",
        parallel_tool_calls: bool = True,
        think: bool | str | None = None,
        schema: Mapping[str, Any] | None = None,
        grammar: str = "",
        **options: Any,
    ) -> AsyncIterator[inference_pb2.InferenceEvent]:
        """Yield the events of an answer, the last of which is `done`.

        `tool_choice`: "auto", "none", "required", or a tool's name. `think`: whether to, or "low" to "max". `schema`:
        the answer is JSON of it. Other options are the fields of `Sampling` and `AnswerOptions`.

        Raises:
            PunaError: the service refused, or failed.
        """
        request = inference_pb2.ChatRequest(
            model=model,
            messages=[inference_pb2.ChatMessage(role="user", content=messages)]
            if isinstance(messages, str)
            else messages,
            tools=[tool.to_proto() for tool in tools],
            options=_options(options, schema, grammar),
            parallel_tool_calls=parallel_tool_calls,
        )
        _choose(request, tool_choice)
        if isinstance(think, bool):
            request.think = think
        elif think is not None:
            if think not in _LEVELS:
                raise InvalidRequest(f"think must be true, false or one of {', '.join(_LEVELS)}", param="think")
            request.think_level = _LEVELS[think]
        async for event in received(self.stub.Chat(request, **self._call())):
            yield event

    async def list_models(self) -> list[scheduler_pb2.ModelRoute]:
        """List every model that this caller may see, newest first.

        Raises:
            PunaError: the service refused.
        """
        return list((await self._listed()).models)

    async def list_aliases(self) -> list[scheduler_pb2.Alias]:
        """List the second names of models that this caller may use.

        Raises:
            PunaError: the service refused.
        """
        return list((await self._listed()).aliases)

    async def show_model(self, model: str) -> scheduler_pb2.ModelRoute:
        """Return one model and its replicas.

        Raises:
            ModelNotFound: there is none of this name.
        """
        with domain_errors():
            return await self.stub.ShowModel(inference_pb2.ShowModelRequest(model=model), **self._call())

    async def load_model(
        self, model: str, *, context_tokens: int | None = None, keep_alive_ms: int | None = None
    ) -> AsyncIterator[inference_pb2.InferenceEvent]:
        """Have a replica; how that goes, the last event is `done`.

        Raises:
            PunaError: it cannot be loaded.
        """
        request = inference_pb2.LoadModelRequest(
            model=model, context_tokens=context_tokens, keep_alive_ms=keep_alive_ms
        )
        async for event in received(self.stub.LoadModel(request, **self._call())):
            yield event

    async def unload_model(self, model: str) -> int:
        """Stop a model's replicas once they are idle; return how many will stop.

        Raises:
            ModelNotFound: there is none of this name.
        """
        with domain_errors():
            answer = await self.stub.UnloadModel(scheduler_pb2.UnloadModelRequest(model_name=model), **self._call())
        return int(answer.replicas)

    async def pull_model(self, model: str, *, insecure: bool = False) -> AsyncIterator[store_pb2.StoreProgress]:
        """Fetch a model from its registry; how that goes, the last status is "success", and the model can be used.

        Raises:
            PermissionDenied: the registry is not on the server's list.
            PunaError: it cannot be fetched.
        """
        request = inference_pb2.PullModelRequest(model=model, insecure=insecure)
        call = self.stub.PullModel(request, metadata=(*call_metadata(), *self._credentials))
        async for step in received(call):
            yield step

    async def _listed(self) -> inference_pb2.ListModelsResponse:
        with domain_errors():
            return await self.stub.ListModels(inference_pb2.ListModelsRequest(), **self._call())

    def _call(self) -> dict[str, Any]:
        return {"timeout": self._timeout_s, "metadata": (*call_metadata(), *self._credentials)}


def user(text: str, *images: bytes) -> inference_pb2.ChatMessage:
    """Return a message of the user, with images before its text."""
    return inference_pb2.ChatMessage(role="user", content=text, images=images)


def result(call: Call, text: str) -> inference_pb2.ChatMessage:
    """Build the message that carries a tool's result back to the model."""
    return inference_pb2.ChatMessage(role="tool", content=text, tool_name=call.name, tool_call_id=call.id)


def _choose(request: inference_pb2.ChatRequest, choice: str) -> None:
    match choice:
        case "auto":
            pass
        case "none":
            request.tool_mode = inference_pb2.TOOL_MODE_NONE
        case "required":
            request.tool_mode = inference_pb2.TOOL_MODE_REQUIRED
        case _:
            request.forced_tool = choice


def _options(given: Mapping[str, Any], schema: Mapping[str, Any] | None, grammar: str) -> inference_pb2.AnswerOptions:
    in_sampling = frozenset(runner_pb2.Sampling.DESCRIPTOR.fields_by_name)
    own = frozenset(inference_pb2.AnswerOptions.DESCRIPTOR.fields_by_name)
    if unknown := given.keys() - in_sampling - own:
        raise InvalidRequest(f"there is no option {min(unknown)!r}", param=min(unknown))
    sampling = runner_pb2.Sampling(**{name: value for name, value in given.items() if name in in_sampling})
    options = inference_pb2.AnswerOptions(
        sampling=sampling, **{name: value for name, value in given.items() if name in own and name not in in_sampling}
    )
    if schema is not None:
        options.json_schema = json.dumps(schema)
    elif grammar:
        options.grammar = grammar
    return options

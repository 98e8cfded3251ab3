"""Requests of a sender whose constraints have used too much processor time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from common.errors import InvalidRequest, QueueFull
from gateway.answers.generation import Work
from gateway.answers.inference import Inference
from gateway.answers.record import RequestRecord
from gateway.constraint_checks import CORE_SHARE, ConstraintChecks
from gateway.core.models.routes import ModelInfo, RouteInfo
from gateway.core.request.answer_format import AnswerFormat
from gateway.core.request.answers import AnswerRequest, Chat, Dialect, Message, Think
from gateway.templates.chat_prompt import ChatPrompts
from tests.set_clock import SetClock
from tests.unit.gateway.templates.test_chat_prompt import InProcess

# Its prompt ends within reasoning, unless that is off.
TEMPLATE = "{{ messages[0].content }}{% if enable_thinking %}<think>{% else %}<think></think>{% endif %}"
MODEL = ModelInfo(name="m:latest", digest="d", chat_template=TEMPLATE, capabilities=("completion", "thinking"))
COSTLY, NEW, BAD = "costly", "new", "bad"


class Workers:
    """Instead of a pool: every compilation takes a second, and of a bad schema it fails."""

    def __init__(self, *_: object, **__: object) -> None: ...

    @asynccontextmanager
    async def worker(self, _sender: str) -> AsyncIterator["Workers"]:
        yield self

    async def ask(self, frame: bytes) -> bytes:
        outcome = {"error": "json_schema is bad", "param": "json_schema"} if BAD.encode() in frame else {"lark": "x"}
        return orjson.dumps({"cpu_s": 1.0, **outcome})


class Gateway:
    """The parts that prepare requests; counts renderings."""

    def __init__(self) -> None:
        self.clock = SetClock()
        self.renderer = InProcess()
        nothing: Any = None
        dispatcher: Any = type("NoDispatcher", (), {"routes": nothing})
        self._inference = Inference(
            dispatcher=dispatcher,
            prompts=ChatPrompts(self.renderer),
            constraints=ConstraintChecks(self.clock, sender=lambda: "ada"),
            clock=self.clock,
            request_timeout_s=60.0,
        )

    async def prepare(self, schema: str | None, think: Think | None = None) -> Work:
        wanted = None if schema is None else AnswerFormat(field="format", json_schema=f'{{"title":"{schema}"}}')
        request = AnswerRequest(
            dialect=Dialect.OLLAMA,
            model=MODEL.name,
            prompt=Chat(messages=(Message(role="user", content="hi"),)),
            think=think,
            format=wanted,
        )
        record = RequestRecord(dialect=request.dialect, route="/api/chat")
        return await self._inference._prepare(request, RouteInfo(model=MODEL), record, deadline_s=1e6)


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Gateway:
    monkeypatch.setattr("gateway.constraint_checks.WorkerPool", Workers)
    return Gateway()


async def test_a_new_schema_is_refused_before_its_prompt_is_rendered(gateway: Gateway) -> None:
    await gateway.prepare(COSTLY)
    rendered = len(gateway.renderer.variables)
    with pytest.raises(QueueFull, match="too many schemas and grammars") as caught:
        await gateway.prepare(NEW)
    assert caught.value.retry_after_s == pytest.approx(1.0 + 1.0 / CORE_SHARE)
    assert len(gateway.renderer.variables) == rendered
    gateway.clock.moved_s = 1.1 / CORE_SHARE
    await gateway.prepare(NEW)


@pytest.mark.parametrize("think", [Think.ON, Think.OFF])
async def test_a_schema_that_has_passed_is_accepted_wherever_its_prompt_ends(gateway: Gateway, think: Think) -> None:
    first = await gateway.prepare(COSTLY, think)
    again = await gateway.prepare(COSTLY, think)
    assert again.constraint is not None
    assert again.constraint == first.constraint
    assert (again.constraint.free_text is not None) == (think is Think.ON)


async def test_a_schema_that_was_refused_is_refused_with_its_reason(gateway: Gateway) -> None:
    with pytest.raises(InvalidRequest):
        await gateway.prepare(BAD)
    await gateway.prepare(COSTLY)
    with pytest.raises(InvalidRequest, match="format is bad"):
        await gateway.prepare(BAD)


async def test_a_request_without_a_schema_is_accepted(gateway: Gateway) -> None:
    await gateway.prepare(COSTLY)
    assert (await gateway.prepare(None)).constraint is None

"""Requests beyond a model's capabilities are refused before they cost anything."""

from typing import Any

import pytest

from common.errors import BadModelFile, InvalidRequest, UnsupportedCapability
from gateway.core.models.routes import ModelInfo
from gateway.core.prepare.capabilities import check_capabilities, check_usable
from gateway.core.request.answers import AnswerRequest, Chat, Dialect, Message, RawPrompt, Think
from gateway.core.request.images import RequestImage, before_text

CHAT = Chat(messages=(Message(role="user", content="hi"),))
TOOLS = Chat(messages=CHAT.messages, tools=({"type": "function", "function": {"name": "look"}},))
INFILL = RawPrompt(text="def f(", suffix="return 1")
THINKING_LEVELS = [one for one in Think if one is not Think.OFF]


def model(*capabilities: str, **fields: Any) -> ModelInfo:
    return ModelInfo(name="m:latest", digest="d", capabilities=capabilities, **fields)


def ask(prompt: Chat | RawPrompt, model: ModelInfo, *, dialect: Dialect = Dialect.OPENAI, think: Any = None) -> None:
    check_capabilities(AnswerRequest(dialect=dialect, model="m", prompt=prompt, think=think), model)


def test_a_broken_file_says_what_is_wrong_with_it() -> None:
    check_usable(model())
    with pytest.raises(BadModelFile, match="m:latest: a tensor ends behind the file"):
        check_usable(model(error="a tensor ends behind the file"))


@pytest.mark.parametrize(("prompt", "verb"), [(CHAT, "chat"), (RawPrompt(text="x"), "generate")])
def test_a_model_of_vectors_writes_no_text_and_one_that_nobody_inspected_may_try(
    prompt: Chat | RawPrompt, verb: str
) -> None:
    with pytest.raises(UnsupportedCapability, match=f'^"m" does not support {verb}$'):
        ask(prompt, model("embedding"))
    ask(prompt, model("completion"))
    ask(prompt, model())


@pytest.mark.parametrize(("prompt", "capability"), [(TOOLS, "tools"), (INFILL, "insert")])
def test_tools_and_text_behind_need_a_template_that_has_a_place_for_them(
    prompt: Chat | RawPrompt, capability: str
) -> None:
    with pytest.raises(UnsupportedCapability, match=f'^"m" does not support {capability}$'):
        ask(prompt, model("completion"))
    ask(prompt, model("completion", capability))


@pytest.mark.parametrize("think", THINKING_LEVELS)
def test_who_wants_reasoning_of_a_model_without_it_is_told(think: Think) -> None:
    with pytest.raises(UnsupportedCapability, match="thinking"):
        ask(CHAT, model("completion"), think=think)
    ask(CHAT, model("completion", "thinking"), think=think)


@pytest.mark.parametrize("think", [None, Think.OFF])
def test_who_wants_none_gets_none_of_any_model(think: Think | None) -> None:
    ask(CHAT, model("completion"), think=think)


@pytest.mark.parametrize("think", THINKING_LEVELS)
def test_in_anthropics_dialect_reasoning_is_a_wish(think: Think) -> None:
    ask(CHAT, model("completion"), dialect=Dialect.ANTHROPIC, think=think)


def test_more_images_than_a_model_takes_are_refused() -> None:
    one = RequestImage("eA==")
    several = RawPrompt(text="x", images=before_text([one, one]))
    ask(several, model("completion", "vision"))
    with pytest.raises(InvalidRequest, match="only supports one image"):
        ask(several, model("completion", "vision", architecture="mllama"))

"""Overflow of a context in the words that OpenAI's clients read."""

from dataclasses import replace

import pytest

from common.errors import PromptTooLong
from gateway.core.models.routes import ModelInfo
from gateway.core.prepare.overflow import COUNTS, Overflow, check_hopeless, in_openai_words
from gateway.core.request.answers import AnswerRequest, Chat, Dialect, Message, RawPrompt
from runner.core.sequence.truncation import too_long

CHAT = Chat(messages=(Message(role="user", content="x"),))


@pytest.mark.parametrize(
    ("wanted", "param", "text"),
    [
        (
            Overflow(prompt=CHAT),
            "messages",
            (
                "This model's maximum context length is 512 tokens. However, your messages resulted in 600 tokens. "
                "Please reduce the length of the messages. The input exceeds the context window by 88 tokens."
            ),
        ),
        (
            Overflow(prompt=RawPrompt(text="x"), completion_tokens=16),
            "prompt",
            (
                "This model's maximum context length is 512 tokens, however you requested 616 tokens "
                "(600 in your prompt; 16 for the completion). Please reduce your prompt; or completion length. "
                "The input exceeds the context window by 88 tokens."
            ),
        ),
        (
            Overflow(prompt=None),
            "prompt",
            (
                "This model's maximum context length is 512 tokens, however you requested 600 tokens "
                "(600 in your prompt; 0 for the completion). Please reduce your prompt; or completion length. "
                "The input exceeds the context window by 88 tokens."
            ),
        ),
    ],
)
def test_an_overflow_reads_as_openai_writes_it(wanted: Overflow, param: str, text: str) -> None:
    error = in_openai_words(too_long(600, 512, param="prompt"), wanted)
    assert isinstance(error, PromptTooLong)
    assert (error.message, error.param) == (text, param)


@pytest.mark.parametrize(("most", "helps"), [(0, False), (599, False), (600, True), (131072, True)])
def test_a_longer_context_is_named_only_where_it_would_hold_the_prompt(most: int, helps: bool) -> None:
    error = in_openai_words(too_long(600, 512, param="prompt"), Overflow(prompt=CHAT, context_tokens_max=most))
    assert (f'set "num_ctx" (up to {most})' in error.message) is helps
    assert error.message.endswith(".")


def test_an_overflow_without_counts_stays_as_it_is() -> None:
    error = PromptTooLong("the input length exceeds the context length", param="prompt")
    assert in_openai_words(error, Overflow(prompt=CHAT)) is error


MODEL = ModelInfo(name="m:latest", digest="d", context_tokens=100, token_bytes_max=8)


def _said(*contents: str, role: str = "user", truncate: bool = False) -> AnswerRequest:
    chat = Chat(messages=tuple(Message(role=role, content=content) for content in contents))
    return AnswerRequest(dialect=Dialect.OPENAI, model="m", prompt=chat, truncate=truncate)


@pytest.mark.parametrize(
    "request_",
    [
        _said("x" * 804, "x" * 804),
        AnswerRequest(dialect=Dialect.OPENAI, model="m", prompt=RawPrompt(text="x" * 1608)),
    ],
)
def test_a_prompt_that_no_tokenizer_makes_short_enough_is_refused_unrendered(request_: AnswerRequest) -> None:
    with pytest.raises(PromptTooLong) as caught:
        check_hopeless(request_, MODEL, context_tokens=0)
    found = COUNTS.search(caught.value.message)
    assert found is not None
    assert (int(found["tokens"]), int(found["limit"])) == (201, 100)


@pytest.mark.parametrize(
    ("request_", "model", "context_tokens"),
    [
        (_said("x" * 1600), MODEL, 0),  # within twice the context
        (_said("x" * 1608), MODEL, 101),  # a larger one was asked for
        (_said("x" * 1608, truncate=True), MODEL, 0),  # the runner cuts it
        (_said("x" * 1608, role="tool"), MODEL, 0),  # a template may leave it out
        (_said(" " * 9000 + "x"), MODEL, 0),  # a template may cut blanks off
        (_said("x" * 1608), replace(MODEL, token_bytes_max=0), 0),
        (_said("x" * 1608), replace(MODEL, context_tokens=0), 0),
    ],
)
def test_a_prompt_that_may_fit_is_not_refused(request_: AnswerRequest, model: ModelInfo, context_tokens: int) -> None:
    check_hopeless(request_, model, context_tokens=context_tokens)

"""Overflow of a context in the words that OpenAI's clients read."""

import pytest

from common.errors import PromptTooLong
from gateway.core.prepare.overflow import Overflow, in_openai_words
from gateway.core.request.answers import Chat, Message, RawPrompt
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

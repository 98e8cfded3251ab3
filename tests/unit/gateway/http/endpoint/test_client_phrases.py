"""Errors as the client libraries classify them: by status, by code, by words inside the text.

The phrases are those of the libraries' own sources, named in each row. A row that fails means that a library takes the
error for something else: no fallback to a larger model, a retry that cannot succeed, or none where one would.
"""

from dataclasses import dataclass

import orjson
import pytest

from common.errors import ERROR_TABLE, PunaError, Retry, error_types
from gateway.core.keys.keys import KeyRing
from gateway.core.prepare.overflow import Overflow, in_openai_words
from gateway.core.request.answers import Chat, Dialect, Message
from gateway.http.endpoint.errors import ErrorAnswer, error_answer
from runner.core.sequence.truncation import too_long

OVERFLOW = too_long(600, 512, param="prompt")
OPENAI_OVERFLOW = in_openai_words(OVERFLOW, Overflow(prompt=Chat(messages=(Message(role="user", content="x"),))))


@dataclass(frozen=True, kw_only=True)
class Row:
    """A phrase that a library looks for in the text or the code of an error, and what it makes of it."""

    library: str
    error: PunaError
    phrase: str
    dialect: Dialect = Dialect.OPENAI


def _bad_key() -> PunaError:
    with pytest.raises(error_types()["invalid_api_key"]) as refused:
        KeyRing.of(b"pepper", []).find("sk-other", now_unix_s=0.0)
    return refused.value


# LiteLLM: litellm/litellm_core_utils/exception_mapping_utils.py (1.106), lower case where it compares so.
# LangChain: langchain_openai/chat_models/base.py (1.7), langchain_anthropic/chat_models.py (1.7).
# pydantic-ai: pydantic_ai/_model_errors.py (2.68).
ROWS = (
    Row(library="LiteLLM: ContextWindowExceededError", error=OPENAI_OVERFLOW, phrase="This model's maximum context"),
    Row(library="LangChain: ContextOverflowError", error=OPENAI_OVERFLOW, phrase="context_length_exceeded"),
    Row(library="LangChain, in a stream", error=OPENAI_OVERFLOW, phrase="exceeds the context window"),
    Row(library="pydantic-ai, without a code", error=OPENAI_OVERFLOW, phrase="maximum context length"),
    Row(library="LiteLLM: AuthenticationError", error=_bad_key(), phrase="Incorrect API key provided"),
    Row(library="LiteLLM, LangChain: overflow", error=OVERFLOW, phrase="prompt is too long", dialect=Dialect.ANTHROPIC),
)


def _answer(error: PunaError, dialect: Dialect) -> tuple[ErrorAnswer, str]:
    answer = error_answer(error, dialect, "req_1")
    return answer, answer.body.decode()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.library)
def test_an_error_has_the_words_that_a_library_looks_for(row: Row) -> None:
    assert row.phrase in _answer(row.error, row.dialect)[1]


# Words that make LiteLLM take any error, whatever its status, for one of these two.
_RATE_LIMIT = ("rate limit", "rate_limit", "rate-limit")
_OVERFLOW = (
    "exceed context limit",
    "this model's maximum context length is",
    "model's maximum context limit",
    "is longer than the model's context length",
    "input tokens exceed the configured limit",
    "exceeds the available context size",
    "exceeds the maximum number of tokens allowed",
)


@pytest.mark.parametrize("reason", sorted(ERROR_TABLE))
def test_no_error_is_taken_for_a_quota_or_an_overflow_that_is_none(reason: str) -> None:
    text = _answer(error_types()[reason]("what happened"), Dialect.OPENAI)[1].lower()
    assert any(word in text for word in _RATE_LIMIT) is (ERROR_TABLE[reason].openai_status == 429)
    assert not any(word in text for word in _OVERFLOW)


@pytest.mark.parametrize("reason", sorted(ERROR_TABLE))
def test_what_cannot_succeed_is_a_bad_request_or_says_so_in_a_header(reason: str) -> None:
    """Every library tries 408, 409, 429 and 5xx again; the OpenAI and Anthropic SDKs and pydantic-ai ask the header."""
    row = ERROR_TABLE[reason]
    for dialect in (Dialect.OPENAI, Dialect.ANTHROPIC):
        answer, _ = _answer(error_types()[reason]("x"), dialect)
        is_tried_again = answer.status in (408, 409, 429) or answer.status >= 500
        assert answer.status != 409
        assert is_tried_again or row.retry is not Retry.LATER
        assert (answer.headers.get("x-should-retry") == "false") is (row.retry is Retry.NEVER)


def test_an_unknown_model_is_not_found_by_type_and_code() -> None:
    """LiteLLM: NotFoundError needs both words; the type alone would make it a BadRequestError."""
    text = _answer(error_types()["model_not_found"]("model 'x' not found"), Dialect.OPENAI)[1]
    assert "invalid_request_error" in text
    assert "model_not_found" in text


@pytest.mark.parametrize("reason", ["rate_limit_exceeded", "queue_full", "model_unavailable", "model_loading"])
def test_a_wait_is_told_in_both_headers(reason: str) -> None:
    """Vercel's AI SDK reads retry-after-ms, then retry-after; the OpenAI SDK both."""
    headers = _answer(error_types()[reason]("x", retry_after_s=2.5), Dialect.OPENAI)[0].headers
    assert (headers["retry-after-ms"], headers["retry-after"]) == ("2500", "3")


def test_codes_are_texts() -> None:
    """pydantic-ai and Vercel's AI SDK take a number in `code` for the status."""
    for reason in ERROR_TABLE:
        error = orjson.loads(_answer(error_types()[reason]("x"), Dialect.OPENAI)[1])["error"]
        assert isinstance(error["code"], str)
        assert not error["code"].isdigit()

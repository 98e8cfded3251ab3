"""Overflow of a context in OpenAI's own sentences, which clients read beside the code. Pure.

Source of the forms: OpenAI's API. LiteLLM's fallback to a larger model looks for "this model's maximum context length
is", pydantic-ai for "maximum context length", LangChain inside a stream for "exceeds the context window".
"""

import re
from dataclasses import dataclass

from common.errors import PromptTooLong
from gateway.core.models.routes import ModelInfo
from gateway.core.request.answers import AnswerRequest, Chat, RawPrompt

# As runners count them (`runner.core.sequence.truncation.too_long`).
COUNTS = re.compile(r"(?P<tokens>\d+) tokens > (?P<limit>\d+) maximum")


@dataclass(frozen=True, slots=True, kw_only=True)
class Overflow:
    """A request that overflows. `context_tokens_max` is what it could get, 0 if unknown."""

    prompt: Chat | RawPrompt | None  # None: inputs of vectors
    completion_tokens: int = 0
    context_tokens_max: int = 0


def check_hopeless(request: AnswerRequest, model: ModelInfo, *, context_tokens: int) -> None:
    """Refuse a prompt before it is rendered that has more tokens than twice any context of the model.

    What users wrote is counted, without the blanks that a template may cut off, as if each token were the longest one.
    Twice: a replica may have a larger context than the model's training.

    Raises:
        PromptTooLong: as a runner would say it; the number is the least possible one.
    """
    limit = max(model.context_tokens, context_tokens)
    if request.truncate or not model.token_bytes_max or not limit:
        return
    match request.prompt:
        case Chat(messages=messages):
            texts = [message.content for message in messages if message.role == "user"]
        case RawPrompt(text=text, suffix=suffix):
            texts = [text, suffix]
    tokens = sum(len(text.strip()) for text in texts) // model.token_bytes_max
    if tokens > 2 * limit:
        raise PromptTooLong(f"the input length exceeds the context length: {tokens} tokens > {limit} maximum")


def in_openai_words(error: PromptTooLong, wanted: Overflow) -> PromptTooLong:
    """Return the error with OpenAI's sentence, the excess, and the setting that would help if there is one."""
    found = COUNTS.search(error.message)
    if found is None:
        return error
    tokens, limit = int(found["tokens"]), int(found["limit"])
    param = error.param
    if isinstance(wanted.prompt, Chat):
        param = "messages"
        text = (
            f"This model's maximum context length is {limit} tokens. However, your messages resulted in {tokens} "
            "tokens. Please reduce the length of the messages."
        )
    else:
        completion = wanted.completion_tokens
        text = (
            f"This model's maximum context length is {limit} tokens, however you requested {tokens + completion} "
            f"tokens ({tokens} in your prompt; {completion} for the completion). "
            "Please reduce your prompt; or completion length."
        )
    text += f" The input exceeds the context window by {tokens - limit} tokens"
    if wanted.context_tokens_max >= tokens:
        text += f': set "num_ctx" (up to {wanted.context_tokens_max}) in "options" or in the model\'s parameters'
    return PromptTooLong(f"{text}.", param=param)

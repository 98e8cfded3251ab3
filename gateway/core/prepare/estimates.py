"""Estimates of a request's tokens before they are counted. Pure.

What is reserved of a quota, and what a request weighs in the queue; both are settled to the real numbers afterwards.
"""

from collections.abc import Iterable

from gateway.core.prepare.vectors import EmbedQuestion, RerankQuestion
from gateway.core.request.answers import AnswerRequest, RawPrompt, images_of

# Text of most languages and tokenizers; code and digits have fewer characters a token.
_CHARACTERS_PER_TOKEN = 4
_TOKENS_PER_IMAGE = 256
# Of an answer without a limit.
_ANSWER_TOKENS = 512


def answer_tokens(request: AnswerRequest) -> int:
    """Estimate the tokens of prompt and longest answer."""
    limit = request.options.get("num_predict")
    longest = limit if isinstance(limit, int) and limit > 0 else _ANSWER_TOKENS
    return prompt_tokens(request) + longest


def prompt_tokens(request: AnswerRequest) -> int:
    """Estimate the tokens of the prompt."""
    prompt = request.prompt
    images = len(images_of(prompt)) * _TOKENS_PER_IMAGE
    if isinstance(prompt, RawPrompt):
        return text_tokens([prompt.text]) + len(prompt.token_ids) + images
    texts = (text for message in prompt.messages for text in (message.content, message.thinking))
    tools = (str(tool) for tool in prompt.tools)
    return text_tokens(texts) + text_tokens(tools) + len(prompt.earlier_token_ids) + images


def question_tokens(question: EmbedQuestion | RerankQuestion) -> int:
    """Return the tokens of an embedding or a ranking; the latter reads its query before each document."""
    if isinstance(question, EmbedQuestion):
        return sum(text_tokens([one]) if isinstance(one, str) else len(one) for one in question.inputs)
    query = text_tokens([question.query])
    return sum(query + text_tokens([document]) for document in question.documents)


def text_tokens(texts: Iterable[str]) -> int:
    """Estimate the tokens of a text, rounded up."""
    return -(-sum(len(text) for text in texts) // _CHARACTERS_PER_TOKEN)

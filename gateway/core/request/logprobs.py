"""Log-probabilities in the forms that clients know."""

from collections.abc import Iterable, Iterator

from common.errors import InvalidRequest
from gateway.core.request.answers import GeneratedToken

TOP_LOGPROBS_MAX = 20
# JSON has no minus infinity.
IMPOSSIBLE = -9999.0


def check_top_logprobs(value: int, *, param: str = "top_logprobs") -> int:
    """Check a number of alternatives.

    Raises:
        InvalidRequest: not between 0 and 20.
    """
    if not 0 <= value <= TOP_LOGPROBS_MAX:
        raise InvalidRequest("top_logprobs must be between 0 and 20", param=param)
    return value


def logprob_entries(tokens: Iterable[GeneratedToken]) -> list[dict[str, object]]:
    """`{token, logprob, bytes, top_logprobs}` per token, as OpenAI's chat and Ollama's native API have it."""
    return [
        {
            **_entry(token.piece, logprob),
            "top_logprobs": [_entry(other.piece, other.logprob) for other in token.top],
        }
        for token, logprob in _with_logprob(tokens)
    ]


def legacy_logprobs(tokens: Iterable[GeneratedToken], *, text_offset: int) -> dict[str, list[object]]:
    """`{tokens, token_logprobs, top_logprobs, text_offset}`, as OpenAI's completions have it."""
    columns: dict[str, list[object]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for token, logprob in _with_logprob(tokens):
        text = _text(token.piece)
        columns["tokens"].append(text)
        columns["token_logprobs"].append(_finite(logprob))
        columns["top_logprobs"].append({_text(other.piece): _finite(other.logprob) for other in token.top})
        columns["text_offset"].append(text_offset)
        text_offset += len(text)
    return columns


def _with_logprob(tokens: Iterable[GeneratedToken]) -> Iterator[tuple[GeneratedToken, float]]:
    return ((token, token.logprob) for token in tokens if token.logprob is not None)


def _entry(piece: bytes, logprob: float) -> dict[str, object]:
    return {"token": _text(piece), "logprob": _finite(logprob), "bytes": list(piece)}


def _text(piece: bytes) -> str:
    return piece.decode(errors="replace")


def _finite(logprob: float) -> float:
    return max(logprob, IMPOSSIBLE)

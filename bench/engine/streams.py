"""Result of both clients: the arrival time of every token."""

from dataclasses import dataclass


class BadAnswer(Exception):
    """A server did not answer as asked; the run proves nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStream:
    """One answer. Times are seconds on one monotonic clock."""

    sent_s: float
    token_times_s: tuple[float, ...]  # arrival of each token sent; tokens of one message share theirs
    end_s: float
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int  # by the server's count; what it held back at the end is among them
    token_ids: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Vectors:
    """The answer to one embedding request."""

    sent_s: float
    end_s: float
    prompt_tokens: int
    vectors: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One generation as both servers are asked for it."""

    prompt: tuple[int, ...]
    tokens: int
    temperature: float = 0.0
    top_k: int = 40
    top_p: float = 0.9
    min_p: float = 0.05
    seed: int = 1
    grammar: str = ""

"""Prompts of a benchmark and the summary figures of its requests. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

CONCURRENCY_MAX = 1024
_SYLLABLES = ("ka", "mo", "ri", "ten", "sal", "du", "ve", "lor", "an", "pi", "su", "gen", "ta", "ol", "bi", "nek")
_SHARED = -1  # number of the words that all prompts have in common


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One request, by the client's clock. `tokens` of the answer, as the server counted them."""

    started_s: float
    first_token_s: float
    ended_s: float
    tokens: int
    prompt_tokens: int
    cached_tokens: int

    @property
    def ttft_s(self) -> float:
        """Time to the first token."""
        return self.first_token_s - self.started_s

    @property
    def tokens_per_s(self) -> float | None:
        """After the first token; None where there is no second."""
        span_s = self.ended_s - self.first_token_s
        return (self.tokens - 1) / span_s if self.tokens > 1 and span_s > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrencyLevel:
    """Requests that so many clients made at once. What nothing answered for is None."""

    concurrency: int
    requests: int
    failed: int
    prompt_tokens: float | None = None  # mean
    answer_tokens: float | None = None  # mean
    cached_share: float | None = None  # of all prompt tokens
    ttft_ms_p50: float | None = None
    ttft_ms_p95: float | None = None
    stream_tokens_per_s: float | None = None  # median of the requests
    tokens_per_s: float | None = None  # of all together, over the whole time
    wall_s: float


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that so many percent of the values do not exceed (nearest rank): always one of them."""
    assert values
    assert 0 < percent <= 100
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


def level_of(concurrency: int, answered: Sequence[Answered], *, failed: int, wall_s: float) -> ConcurrencyLevel:
    """Sum up the requests of one level."""
    if not answered:
        return ConcurrencyLevel(concurrency=concurrency, requests=0, failed=failed, wall_s=round(wall_s, 3))
    prompt, tokens = sum(one.prompt_tokens for one in answered), sum(one.tokens for one in answered)
    ttft_ms = [one.ttft_s * 1000 for one in answered]
    speeds = [one.tokens_per_s for one in answered if one.tokens_per_s is not None]
    return ConcurrencyLevel(
        concurrency=concurrency,
        requests=len(answered),
        failed=failed,
        prompt_tokens=round(prompt / len(answered), 1),
        answer_tokens=round(tokens / len(answered), 1),
        cached_share=round(sum(one.cached_tokens for one in answered) / prompt, 3) if prompt else None,
        ttft_ms_p50=round(percentile(ttft_ms, 50), 1),
        ttft_ms_p95=round(percentile(ttft_ms, 95), 1),
        stream_tokens_per_s=round(percentile(speeds, 50), 1) if speeds else None,
        tokens_per_s=round(tokens / wall_s, 1) if wall_s > 0 else None,
        wall_s=round(wall_s, 3),
    )


HEADINGS = ("AT ONCE", "REQUESTS", "FAILED", "PROMPT", "CACHED", "ANSWER", "TTFT P50", "TTFT P95", "EACH", "TOGETHER")


def level_row(level: ConcurrencyLevel) -> tuple[str, ...]:
    """Return the table row of a level; speeds are tokens/s."""
    return (
        str(level.concurrency),
        str(level.requests),
        str(level.failed),
        _figure(level.prompt_tokens, ".0f"),
        _figure(level.cached_share, ".0%"),
        _figure(level.answer_tokens, ".0f"),
        _figure(level.ttft_ms_p50, ".0f", " ms"),
        _figure(level.ttft_ms_p95, ".0f", " ms"),
        _figure(level.stream_tokens_per_s, ".1f"),
        _figure(level.tokens_per_s, ".1f"),
    )


def _figure(value: float | None, form: str, unit: str = "") -> str:
    return "" if value is None else f"{value:{form}}{unit}"


def concurrency_list(text: str) -> tuple[int, ...]:
    """Parse a list of numbers such as "1,2,4".

    Raises:
        ValueError: not such a list.
    """
    try:
        levels = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ValueError(f"{text[:40]!r} is no list of numbers, like 1,2,4") from error
    if not all(1 <= level <= CONCURRENCY_MAX for level in levels):
        raise ValueError(f"as many clients at once as 1 to {CONCURRENCY_MAX}")
    return levels


def prompt_words(*, wanted_tokens: int, sample: Mapping[str, Any], sample_words: int) -> int:
    """Return the number of words for a prompt of `wanted_tokens`, in proportion to a sample."""
    tokens = max(1, int(sample.get("prompt_eval_count") or 0))
    return max(1, round(wanted_tokens * sample_words / tokens))


def bench_prompt(*, words: int, shared_words: int, number: int) -> str:
    """`shared_words` are the same for every number; the rest, which no cache can have, belongs to this one."""
    assert 0 <= shared_words <= words
    assert number >= 0
    shared = [_word(_SHARED, position) for position in range(shared_words)]
    return " ".join([*shared, *(_word(number, position) for position in range(words - shared_words))])


def _word(number: int, position: int) -> str:
    digest = blake2b(f"{number}/{position}".encode(), digest_size=3).digest()
    return "".join(_SYLLABLES[byte % len(_SYLLABLES)] for byte in digest)

"""From single streams to medians and ratios. Pure."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from bench.stream_client import StreamResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """All streams of one server at one concurrency, once."""

    server: str
    streams: int
    # All tokens of the round over the time from the first request to the last end.
    tokens_per_s: float
    # Request to first text, of each stream.
    first_token_s: tuple[float, ...]
    # First text to end, of each stream, as tokens per second of that stream alone.
    stream_tokens_per_s: tuple[float, ...]
    completion_tokens: tuple[int, ...]
    prompt_tokens: tuple[int, ...]
    texts: tuple[str, ...]

    def as_json(self) -> dict[str, object]:
        """Without the texts, which are compared and not kept."""
        return {name: value for name, value in asdict(self).items() if name != "texts"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Medians over the rounds of one server at one concurrency."""

    server: str
    streams: int
    tokens_per_s: float
    first_token_ms: float
    first_token_ms_worst: float


def summarise_streams(server: str, results: Sequence[StreamResult]) -> Round:
    """One round from its streams."""
    begin_s = min(result.sent_s for result in results)
    end_s = max(result.end_s for result in results)
    return Round(
        server=server,
        streams=len(results),
        tokens_per_s=sum(result.completion_tokens for result in results) / (end_s - begin_s),
        first_token_s=tuple(result.first_token_s - result.sent_s for result in results),
        stream_tokens_per_s=tuple(
            (result.completion_tokens - 1) / (result.end_s - result.first_token_s)
            for result in results
            if result.end_s > result.first_token_s
        ),
        completion_tokens=tuple(result.completion_tokens for result in results),
        prompt_tokens=tuple(result.prompt_tokens for result in results),
        texts=tuple(result.text for result in results),
    )


def summarise_rounds(rounds: Iterable[Round]) -> list[Summary]:
    """One summary per server and concurrency: the median round, and the worst first token of all."""
    groups: dict[tuple[int, str], list[Round]] = {}
    for entry in rounds:
        groups.setdefault((entry.streams, entry.server), []).append(entry)
    return [
        Summary(
            server=server,
            streams=streams,
            tokens_per_s=statistics.median(entry.tokens_per_s for entry in group),
            first_token_ms=1000 * statistics.median(statistics.median(entry.first_token_s) for entry in group),
            first_token_ms_worst=1000 * max(max(entry.first_token_s) for entry in group),
        )
        for (streams, server), group in sorted(groups.items())
    ]


def agreeing_shares(rounds: Sequence[Round], ours: str, peer: str) -> dict[int, float]:
    """By concurrency, the share of answers that both servers gave word for word; other batches round differently."""
    shares = {}
    for streams in sorted({entry.streams for entry in rounds}):
        texts = {
            server: [
                text for entry in rounds if (entry.server, entry.streams) == (server, streams) for text in entry.texts
            ]
            for server in (ours, peer)
        }
        equal = [one == other for one, other in zip(texts[ours], texts[peer], strict=True)]
        shares[streams] = sum(equal) / len(equal)
    return shares


def table(summaries: Sequence[Summary], ours: str, peer: str) -> list[str]:
    """Markdown: a row per concurrency, ratios of ours to the peer."""
    by_key = {(summary.streams, summary.server): summary for summary in summaries}
    lines = [
        (
            f"| streams | {ours} tokens/s | {peer} tokens/s | ratio"
            f" | {ours} first token ms | {peer} first token ms | ratio |"
        ),
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for streams in sorted({summary.streams for summary in summaries}):
        mine, theirs = by_key[streams, ours], by_key[streams, peer]
        lines.append(
            f"| {streams} | {mine.tokens_per_s:.0f} | {theirs.tokens_per_s:.0f}"
            f" | {mine.tokens_per_s / theirs.tokens_per_s:.2f} | {mine.first_token_ms:.1f}"
            f" | {theirs.first_token_ms:.1f} | {mine.first_token_ms / theirs.first_token_ms:.2f} |"
        )
    return lines

"""From single streams to rounds, medians and paired ratios. Pure."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.engine.streams import TokenStream, Vectors


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """CPU time and memory of a server in one round."""

    cpu_s: float  # user and system time of all its threads
    decode_calls: float | None = None  # only where the server counts them
    decode_s: float | None = None
    gap_s: float | None = None
    host_cpu_s: float | None = None  # of the threads that do not compute


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One server, one case, once. None: the case has no such figure."""

    model: str
    case: str
    server: str
    number: int
    load_average: float
    tokens: int = 0
    wall_s: float = 0.0
    tokens_per_s: float | None = None
    first_token_s: tuple[float, ...] = ()  # of each stream
    between_tokens_p50_ms: float | None = None
    between_tokens_p99_ms: float | None = None
    cpu_ms_per_token: float | None = None
    host_ms_per_step: float | None = None  # time besides the decode calls, see METHODOLOGY.md
    gap_share: float | None = None  # of the time between two decode calls' ends
    steps: float | None = None
    load_s: float | None = None
    peak_resident_bytes: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Only what there is."""
        return {name: value for name, value in asdict(self).items() if value is not None and value != ()}


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share of the values lies, interpolated between neighbours."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def stream_figures(streams: Sequence[TokenStream], cost: Cost) -> dict[str, Any]:
    """Return the figures of a round of streams, as fields of `Round`."""
    wall_s = max(stream.end_s for stream in streams) - min(stream.sent_s for stream in streams)
    tokens = sum(stream.generated_tokens for stream in streams)
    gaps_ms = [
        1000 * (later - earlier)
        for stream in streams
        for earlier, later in zip(stream.token_times_s, stream.token_times_s[1:], strict=False)
    ]
    figures: dict[str, Any] = {
        "tokens": tokens,
        "wall_s": wall_s,
        "tokens_per_s": tokens / wall_s,
        "first_token_s": tuple(stream.token_times_s[0] - stream.sent_s for stream in streams),
        "between_tokens_p50_ms": percentile(gaps_ms, 0.5) if gaps_ms else None,
        "between_tokens_p99_ms": percentile(gaps_ms, 0.99) if gaps_ms else None,
        "cpu_ms_per_token": 1000 * cost.cpu_s / tokens,
    }
    return figures | _step_figures(cost)


def vector_figures(answer: Vectors, cost: Cost) -> dict[str, Any]:
    """Return the figures of one embedding request, as fields of `Round`; its tokens are those of the inputs."""
    wall_s = answer.end_s - answer.sent_s
    return {
        "tokens": answer.prompt_tokens,
        "wall_s": wall_s,
        "tokens_per_s": answer.prompt_tokens / wall_s,
        "cpu_ms_per_token": 1000 * cost.cpu_s / answer.prompt_tokens,
    }


def _step_figures(cost: Cost) -> dict[str, Any]:
    if not cost.decode_calls or cost.decode_s is None or cost.gap_s is None or cost.host_cpu_s is None:
        return {}
    return {
        "steps": cost.decode_calls,
        "gap_share": cost.gap_s / (cost.gap_s + cost.decode_s),
        # What lies between the calls is the engine thread's; the rest is done by others while a call runs.
        "host_ms_per_step": 1000 * (cost.host_cpu_s + cost.gap_s) / cost.decode_calls,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A column of the report."""

    name: str
    title: str
    digits: int
    of: Callable[[Round], float | None]


def _first_token_ms(share: float) -> Callable[[Round], float | None]:
    return lambda entry: 1000 * percentile(entry.first_token_s, share) if entry.first_token_s else None


METRICS = (
    Metric(name="tokens_per_s", title="tokens/s", digits=1, of=lambda entry: entry.tokens_per_s),
    Metric(name="first_token_p50_ms", title="first token p50 ms", digits=1, of=_first_token_ms(0.5)),
    Metric(name="first_token_p95_ms", title="first token p95 ms", digits=1, of=_first_token_ms(0.95)),
    Metric(
        name="between_tokens_p50_ms",
        title="between tokens p50 ms",
        digits=2,
        of=lambda entry: entry.between_tokens_p50_ms,
    ),
    Metric(
        name="between_tokens_p99_ms",
        title="between tokens p99 ms",
        digits=2,
        of=lambda entry: entry.between_tokens_p99_ms,
    ),
    Metric(name="cpu_ms_per_token", title="CPU ms/token", digits=3, of=lambda entry: entry.cpu_ms_per_token),
    Metric(name="load_s", title="load s", digits=2, of=lambda entry: entry.load_s),
    Metric(
        name="peak_resident_mib",
        title="peak RSS MiB",
        digits=0,
        of=lambda entry: None if entry.peak_resident_bytes is None else entry.peak_resident_bytes / 2**20,
    ),
)
# Ours alone: llama-server does not count these.
OWN_METRICS = (
    Metric(name="host_ms_per_step", title="host ms/step", digits=3, of=lambda entry: entry.host_ms_per_step),
    Metric(
        name="gap_percent",
        title="idle gap %",
        digits=2,
        of=lambda entry: None if entry.gap_share is None else 100 * entry.gap_share,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One figure of one case: medians over the rounds, and the median of the ratios of the single rounds."""

    model: str
    case: str
    metric: str
    ours: float
    peer: float | None
    ratio: float | None  # ours / peer in the same round
    rounds: int


def compare(rounds: Iterable[Round], *, ours: str, peer: str) -> list[Comparison]:
    """Every figure of every case, in the order of the rounds. A round counts only where both servers had it."""
    groups: dict[tuple[str, str], dict[str, dict[int, Round]]] = {}
    for entry in rounds:
        by_server = groups.setdefault((entry.model, entry.case), {})
        by_server.setdefault(entry.server, {})[entry.number] = entry
    found: list[Comparison] = []
    for (model, case), by_server in groups.items():
        mine, theirs = by_server.get(ours, {}), by_server.get(peer, {})
        for metric in METRICS:
            pairs = [
                (own, other)
                for number in sorted(mine.keys() & theirs.keys())
                if (own := metric.of(mine[number])) is not None and (other := metric.of(theirs[number])) is not None
            ]
            if pairs:
                found.append(
                    Comparison(
                        model=model,
                        case=case,
                        metric=metric.name,
                        ours=statistics.median(own for own, _ in pairs),
                        peer=statistics.median(other for _, other in pairs),
                        ratio=statistics.median(own / other for own, other in pairs if other),
                        rounds=len(pairs),
                    )
                )
        for metric in OWN_METRICS:
            values = [value for entry in mine.values() if (value := metric.of(entry)) is not None]
            if values:
                found.append(
                    Comparison(
                        model=model,
                        case=case,
                        metric=metric.name,
                        ours=statistics.median(values),
                        peer=None,
                        ratio=None,
                        rounds=len(values),
                    )
                )
    return found


def ratios(comparisons: Iterable[Comparison]) -> dict[str, dict[str, dict[str, float]]]:
    """Model → case → figure → ours divided by the peer's."""
    nested: dict[str, dict[str, dict[str, float]]] = {}
    for entry in comparisons:
        if entry.ratio is not None:
            nested.setdefault(entry.model, {}).setdefault(entry.case, {})[entry.metric] = round(entry.ratio, 4)
    return nested


def equal_share(ours: Sequence[TokenStream], peer: Sequence[TokenStream]) -> float:
    """Return the share of tokens before the first difference between the answers of both servers."""
    same = total = 0
    for own, other in zip(ours, peer, strict=True):
        pairs = list(zip(own.token_ids, other.token_ids, strict=False))
        total += len(pairs)
        same += next((index for index, (one, two) in enumerate(pairs) if one != two), len(pairs))
    return same / total if total else 0.0

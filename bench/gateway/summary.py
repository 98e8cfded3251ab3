"""Summary of the rounds of `bench.gateway`: percentiles of one loop, medians over rounds, bars met or missed."""

import statistics
from typing import Any

from bench.gateway.clients import Outcomes

# S6, and what mutual TLS may cost.
ADDED_P50_MS, ADDED_P99_MS, TOKENS_PER_S = 0.9, 4.0, 40_000
TLS_ADDED_P50_MS, TLS_TOKENS_SHARE = 0.1, 0.98


def percentiles(outcomes: Outcomes) -> dict[str, Any]:
    """Of one open loop. What failed is counted, and in no percentile."""
    firsts = sorted(one.first_s * 1000 for one in outcomes.timed)
    wholes = sorted(one.whole_s * 1000 for one in outcomes.timed)
    return {
        "n": len(firsts),
        "failed": outcomes.failed,
        "first_token_ms": {"p50": _at(firsts, 0.5), "p90": _at(firsts, 0.9), "p99": _at(firsts, 0.99)},
        "whole_ms": {"p50": _at(wholes, 0.5), "p90": _at(wholes, 0.9), "p99": _at(wholes, 0.99)},
    }


def _at(ordered: list[float], share: float) -> float:
    return round(ordered[min(int(len(ordered) * share), len(ordered) - 1)], 3)


def summary(rounds: list[dict[str, Any]], rate: float) -> dict[str, Any]:
    """Medians over the rounds; what the gateway adds is the difference of the percentiles of one round."""
    added = {
        name: round(
            statistics.median(
                entry["gateway"]["first_token_ms"][name] - entry["direct"]["first_token_ms"][name] for entry in rounds
            ),
            3,
        )
        for name in ("p50", "p99")
    }
    by_streams: dict[int, list[int]] = {}
    for entry in rounds:
        for relay in entry["relay"]:
            by_streams.setdefault(relay["streams"], []).append(relay["tokens_per_cpu_s"])
    relayed = max(statistics.median(rates) for rates in by_streams.values())
    share = statistics.median(entry["gateway"]["gateway_core_share"] for entry in rounds)
    failed = sum(entry["gateway"]["failed"] for entry in rounds)
    return {
        "added_first_token_ms": added,
        "cpu_ms_per_request": round(1000 * share / rate, 3),
        "relayed_tokens_per_core_s": round(relayed),
        "failed_requests": failed,
        "holds": {
            f"added p50 <= {ADDED_P50_MS} ms": added["p50"] <= ADDED_P50_MS and not failed,
            f"added p99 <= {ADDED_P99_MS} ms": added["p99"] <= ADDED_P99_MS and not failed,
            f"tokens/s of one core >= {TOKENS_PER_S}": relayed >= TOKENS_PER_S,
        },
    }


def of_tls(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what mutual TLS costs: medians over the rounds, and over the pairs of relays, with it and without."""
    added = statistics.median(
        entry["tls"]["first_token_ms"]["p50"] - entry["gateway"]["first_token_ms"]["p50"] for entry in rounds
    )
    share = statistics.median(
        tls["tokens_per_cpu_s"] / plain["tokens_per_cpu_s"]
        for entry in rounds
        for tls, plain in zip(entry["tls_relay"], entry["relay"], strict=True)
    )
    return {
        "added_first_token_p50_ms": round(added, 3),
        "tokens_per_core_share": round(share, 3),
        "holds": {
            f"TLS adds at most {TLS_ADDED_P50_MS} ms to p50": added <= TLS_ADDED_P50_MS,
            f"tokens/s of one core with TLS >= {TLS_TOKENS_SHARE}": share >= TLS_TOKENS_SHARE,
        },
    }


def of_peer(figures: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a proxy other than the gateway."""
    direct, proxy = figures["direct"]["first_token_ms"], figures["proxy"]["first_token_ms"]
    return {
        "rate": figures["rate"],
        "added_first_token_ms": {name: round(proxy[name] - direct[name], 3) for name in ("p50", "p99")},
        "cpu_ms_per_request": figures["cpu_ms_per_request"],
        "relayed_tokens_per_core_s": figures["relay"]["tokens_per_cpu_s"],
    }

"""The summary of a relay's figures."""

import pytest

from bench.gateway.clients import Outcomes, Timed
from bench.gateway.summary import percentiles, summary


def loop(first_ms: float, *, failed: int = 0) -> dict[str, object]:
    return percentiles(Outcomes([Timed(first_ms / 1000, 0.01, 8)] * 100, failed)) | {"gateway_core_share": 0.3}


def entry(*, direct_ms: float, gateway_ms: float, tokens_per_cpu_s: int, failed: int = 0) -> dict[str, object]:
    return {
        "direct": loop(direct_ms),
        "gateway": loop(gateway_ms, failed=failed),
        "relay": [{"tokens_per_cpu_s": tokens_per_cpu_s}],
    }


def test_what_is_added_is_the_median_of_the_differences_of_each_round() -> None:
    rounds = [entry(direct_ms=1.0, gateway_ms=ms, tokens_per_cpu_s=30_000) for ms in (2.0, 2.2, 9.0)]
    found = summary(rounds, rate=300.0)
    assert found["added_first_token_ms"]["p50"] == pytest.approx(1.2)
    assert found["cpu_ms_per_request"] == 1.0
    assert set(found["holds"].values()) == {True}


@pytest.mark.parametrize(("gateway_ms", "tokens", "failed"), [(2.6, 30_000, 0), (2.0, 19_999, 0), (2.0, 30_000, 1)])
def test_a_bar_is_missed_by_what_is_slow_and_by_what_failed(gateway_ms: float, tokens: int, failed: int) -> None:
    found = summary([entry(direct_ms=1.0, gateway_ms=gateway_ms, tokens_per_cpu_s=tokens, failed=failed)], rate=300.0)
    assert False in found["holds"].values()

"""The summary of a relay's figures."""

import pytest

from bench.gateway.clients import Outcomes, Timed
from bench.gateway.summary import of_tls, percentiles, summary


def loop(first_ms: float, *, failed: int = 0) -> dict[str, object]:
    return percentiles(Outcomes([Timed(first_ms / 1000, 0.01, 8)] * 100, failed)) | {"gateway_core_share": 0.3}


def entry(*, direct_ms: float, gateway_ms: float, tokens: list[int], failed: int = 0) -> dict[str, object]:
    return {
        "direct": loop(direct_ms),
        "gateway": loop(gateway_ms, failed=failed),
        "relay": [{"streams": streams, "tokens_per_cpu_s": rate} for rate in tokens for streams in (16, 64)],
    }


def test_what_is_added_is_the_median_of_the_differences_of_each_round() -> None:
    rounds = [entry(direct_ms=1.0, gateway_ms=ms, tokens=[50_000, 20_000, 51_000]) for ms in (1.6, 1.8, 9.0)]
    found = summary(rounds, rate=300.0)
    assert found["added_first_token_ms"]["p50"] == pytest.approx(0.8)
    assert found["cpu_ms_per_request"] == 1.0
    assert found["relayed_tokens_per_core_s"] == 50_000
    assert set(found["holds"].values()) == {True}


@pytest.mark.parametrize(("gateway_ms", "tokens", "failed"), [(2.0, 40_000, 0), (1.8, 39_999, 0), (1.8, 40_000, 1)])
def test_a_bar_is_missed_by_what_is_slow_and_by_what_failed(gateway_ms: float, tokens: int, failed: int) -> None:
    found = summary([entry(direct_ms=1.0, gateway_ms=gateway_ms, tokens=[tokens], failed=failed)], rate=300.0)
    assert False in found["holds"].values()


def test_tls_is_judged_by_pairs_of_relays_so_that_the_speed_of_the_machine_does_not_count() -> None:
    plain = entry(direct_ms=1.0, gateway_ms=1.8, tokens=[60_000, 30_000, 50_000])
    tls = entry(direct_ms=1.0, gateway_ms=1.85, tokens=[59_000, 29_600, 20_000])
    found = of_tls([plain | {"tls": tls["gateway"], "tls_relay": tls["relay"]}])
    assert found["tokens_per_core_share"] == pytest.approx(0.983)
    assert set(found["holds"].values()) == {True}

from dataclasses import replace

import pytest

from bench.engine.cases import PLANS
from bench.engine.figures import Comparison, Cost, Round, compare, equal_share, percentile, ratios, stream_figures
from bench.engine.streams import TokenStream
from bench.engine.table import comparison_table, target_table
from bench.engine.targets import TARGETS, judge


def stream(*times_s: float, sent_s: float = 0.0, ids: tuple[int, ...] | None = None) -> TokenStream:
    return TokenStream(
        sent_s=sent_s,
        token_times_s=times_s,
        end_s=times_s[-1],
        prompt_tokens=5,
        cached_tokens=0,
        generated_tokens=len(times_s),
        token_ids=ids or tuple(range(len(times_s))),
        text="",
    )


def entry(server: str, number: int, tokens_per_s: float | None = None, **figures: float) -> Round:
    return Round(
        model="57m",
        case="streams-1",
        server=server,
        number=number,
        load_average=0.0,
        tokens_per_s=tokens_per_s,
        **figures,  # type: ignore[arg-type]
    )


def by_metric(comparisons: list[Comparison]) -> dict[str, Comparison]:
    return {comparison.metric: comparison for comparison in comparisons}


def test_a_percentile_lies_between_its_neighbours() -> None:
    assert percentile([4.0, 1.0, 2.0, 3.0], 0.5) == 2.5
    assert percentile([1.0], 0.99) == 1.0
    assert percentile([0.0, 10.0], 0.95) == 9.5


def test_a_round_lasts_from_the_first_request_to_the_last_end_and_counts_every_gap() -> None:
    figures = stream_figures([stream(1.0, 2.0, 4.0), stream(1.5, 5.0, sent_s=1.0)], Cost(cpu_s=2.0))

    assert figures["tokens_per_s"] == 5 / 5
    assert figures["first_token_s"] == (1.0, 0.5)
    assert figures["between_tokens_p50_ms"] == 2000
    assert figures["cpu_ms_per_token"] == 400
    assert "gap_share" not in figures


def test_host_time_is_what_lies_between_calls_and_what_other_threads_took() -> None:
    cost = Cost(cpu_s=9.0, decode_calls=10, decode_s=3.0, gap_s=1.0, host_cpu_s=0.5)

    figures = stream_figures([stream(1.0, 2.0)], cost)

    assert figures["gap_share"] == 0.25
    assert figures["host_ms_per_step"] == pytest.approx(150)


def test_ratios_are_paired_by_round_and_their_median_is_taken() -> None:
    rounds = [entry("ours", n, value) for n, value in enumerate((10.0, 100.0, 30.0))]
    rounds += [entry("peer", n, value) for n, value in enumerate((10.0, 50.0, 10.0))]

    compared = by_metric(compare(rounds, ours="ours", peer="peer"))["tokens_per_s"]

    assert (compared.ours, compared.peer, compared.ratio, compared.rounds) == (30.0, 10.0, 2.0, 3)
    assert ratios([compared]) == {"57m": {"streams-1": {"tokens_per_s": 2.0}}}


def test_a_round_that_one_server_lacks_does_not_count() -> None:
    rounds = [entry("ours", 0, 10.0), entry("peer", 0, 10.0), entry("ours", 1, 90.0)]

    assert by_metric(compare(rounds, ours="ours", peer="peer"))["tokens_per_s"].rounds == 1


def test_what_only_ours_counts_has_no_ratio() -> None:
    compared = by_metric(compare([entry("ours", 0, 1.0, gap_share=0.02)], ours="ours", peer="peer"))

    assert compared["gap_percent"].ours == 2.0
    assert compared["gap_percent"].ratio is None


def test_answers_agree_up_to_the_first_token_that_differs() -> None:
    assert equal_share([stream(1, 2, 3, 4, ids=(1, 2, 3, 4))], [stream(1, 2, 3, 4, ids=(1, 2, 9, 4))]) == 0.5


def test_the_table_has_a_row_for_each_figure() -> None:
    rounds = [entry("ours", 0, 30.0), entry("peer", 0, 20.0)]

    rows = comparison_table(compare(rounds, ours="ours", peer="peer"), ours="ours", peer="peer")

    assert rows[2] == "| 57m | streams-1 | tokens/s | 30.0 | 20.0 | 1.50 |"


def test_targets_are_judged_where_they_were_measured() -> None:
    rounds = [entry("ours", 0, 18.0), entry("peer", 0, 20.0)]

    verdicts = judge(compare(rounds, ours="ours", peer="peer"))

    assert [(verdict.value, verdict.kept) for verdict in verdicts] == [(0.9, False)]
    assert target_table(verdicts)[2] == "| S1 | 57m streams-1, tokens/s, ratio | 0.90 | ≥ 1 | no |"


def test_a_target_may_bound_how_much_later_a_first_token_comes() -> None:
    rounds = [
        replace(entry(server, 0, 10.0), case="first-128-4", first_token_s=(first_s, first_s))
        for server, first_s in (("ours", 0.2025), ("peer", 0.2))
    ]
    (verdict,) = judge(compare(rounds, ours="ours", peer="peer"))
    assert (verdict.target.bar, verdict.kept) == ("S2", True)
    assert verdict.value == pytest.approx(2.5)
    assert target_table([verdict])[2] == "| S2 | 57m first-128-4, first token p50 ms, difference | 2.50 | ≤ 3 | yes |"


def test_every_target_is_of_a_case_that_is_measured() -> None:
    cases = {(plan.name, case.name) for plan in PLANS for case in plan.cases}
    assert {(target.model, target.case) for target in TARGETS} <= cases

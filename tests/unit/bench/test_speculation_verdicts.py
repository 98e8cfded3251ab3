"""Verdict lines of `bench.speculation`."""

from bench.speculation import CASES, Case


def test_a_ratio_is_judged_by_the_bar_of_its_case() -> None:
    case = Case("S4", "oracle 90%", 1, 2.0, 0.9)
    assert case.verdict(2.0) == "S4 reached: oracle 90%, 1 stream: 2.00 of the tokens/s without (bar 2.0)"
    assert case.verdict(1.99).startswith("S4 MISSED: ")


def test_every_part_of_the_bars_has_a_case() -> None:
    assert {(case.bar, case.share, case.streams, case.bound) for case in CASES} >= {
        ("S4", 0.9, 1, 2.0),
        ("S4", 0.3, 1, 0.98),
        ("S4", 0.0, 1, 0.98),
        ("S4", 0.9, 16, 0.99),
        ("S5", None, 1, 1.8),
    }

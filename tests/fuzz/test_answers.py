"""Accounting of a fuzz: what counts as a case, as slow and as a fault."""

import pytest

from tests.fuzz.answers import ACCEPTED_S_MAX, REFUSED_S_MAX, Answer, Answers


def answer(took_s: float, *, is_refused: bool = True, fault: str = "") -> Answer:
    return Answer(status="400" if is_refused else "200", is_refused=is_refused, took_s=took_s, request="x", fault=fault)


@pytest.mark.parametrize(
    ("times_s", "is_refused", "faults"),
    [
        ([REFUSED_S_MAX], True, 0),
        ([REFUSED_S_MAX + 0.1] * 3, True, 1),
        ([REFUSED_S_MAX + 0.1, REFUSED_S_MAX + 0.1, 0.1], True, 0),
        ([ACCEPTED_S_MAX], False, 0),
        ([ACCEPTED_S_MAX + 0.1] * 3, False, 1),
    ],
    ids=["refused", "refused-late", "late-once", "accepted", "accepted-late"],
)
def test_an_answer_that_is_slow_each_time_is_a_fault(times_s: list[float], is_refused: bool, faults: int) -> None:
    report, left = Answers(), list(times_s)
    report.take(lambda: answer(left.pop(0), is_refused=is_refused))
    assert (report.cases, len(report.faults), left) == (1, faults, [])
    assert report.slowest_refusal_s == (min(times_s) if is_refused else 0.0)


def test_a_wrong_answer_is_a_fault_and_what_cannot_be_sent_is_no_case() -> None:
    report = Answers()
    report.take(lambda: answer(0.1, fault="500: oops"))
    report.take(lambda: None)
    assert (report.cases, report.faults) == (1, ["500: oops to x"])

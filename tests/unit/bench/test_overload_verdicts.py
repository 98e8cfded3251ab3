"""Verdicts of the benchmark of an overloaded gateway."""

from typing import Any

import pytest

from bench.overload import Loop, healed_after_s, is_typed_refusal, verdicts


def found(**changes: Any) -> dict[str, Any]:
    loop = Loop(seconds=1.0, first_ms=[100.0] * 96, answered_in_time=96, refused_ms=[5.0] * 50).figures()
    quiet = Loop(seconds=1.0, first_ms=[120.0] * 5).figures()
    return {
        "capacity_per_s": 100.0,
        "unloaded": Loop(seconds=1.0, first_ms=[5.0] * 20).figures(),
        "loads": {"1": loop, "1.5": loop, "3": loop},
        "healed_s": 0.0,
        "after": loop,
        "tenants": {"quiet": quiet, "noisy": loop},
    } | changes


def missed(run: dict[str, Any]) -> list[str]:
    return [name for name, _, kept in verdicts(run) if not kept]


def test_a_run_within_every_bound_keeps_every_bar() -> None:
    assert len(verdicts(found())) == 12
    assert missed(found()) == []


def test_each_bar_can_be_missed() -> None:
    bad = Loop(
        seconds=1.0,
        first_ms=[260.0] * 200,
        answered_in_time=94,  # the others came after the last request was due
        refused_ms=[21.0] * 50,
        failed={"TimeoutError": 1},
    ).figures()
    quiet = Loop(seconds=1.0, first_ms=[300.0] * 4, refused_ms=[1.0]).figures()
    silent = Loop(seconds=1.0, failed={"TimeoutError": 50}).figures()
    run = found(loads={"1.5": bad, "3": bad}, healed_s=1.1, after=silent, tenants={"quiet": quiet})
    assert len(missed(run)) == len(verdicts(run))


def test_a_loop_without_answers_or_refusals_misses_their_bars() -> None:
    empty = Loop(seconds=1.0).figures()
    names = " ".join(missed(found(loads={"1.5": empty, "3": empty})))
    assert "goodput" in names
    assert "first token" in names
    assert "refusals" in names


@pytest.mark.parametrize(
    ("during_s", "after_s", "healed_s"),
    [([7.0, 9.9], [], 0.0), ([9.9], [10.4, 10.7], 0.7), ([], [10.2], 0.2), ([], [], None)],
)
def test_an_overload_is_healed_after_its_last_refusal_and_without_any_nothing_is_known(
    during_s: list[float], after_s: list[float], healed_s: float | None
) -> None:
    overload, after = Loop(seconds=1.0, refused_at_s=during_s), Loop(seconds=1.0, refused_at_s=after_s)
    assert healed_after_s(overload, after, ended_s=10.0) == healed_s
    assert any("last refusal" in name for name in missed(found(healed_s=healed_s))) is (healed_s is None)


def test_a_refusal_needs_status_code_and_time() -> None:
    whole = b'HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\n\r\n{"error":{"code":"queue_full"}}'
    assert is_typed_refusal(whole)
    assert not is_typed_refusal(whole.replace(b"429", b"500"))
    assert not is_typed_refusal(whole.replace(b"retry-after", b"x"))
    assert not is_typed_refusal(whole.replace(b"queue_full", b"x"))

"""Verdicts of the benchmark of an overloaded gateway."""

from typing import Any

from bench.overload import Loop, is_typed_refusal, verdicts


def found(**changes: Any) -> dict[str, Any]:
    loop = Loop(seconds=1.0, first_ms=[100.0] * 96, answered_in_time=96, refused_ms=[5.0] * 50).figures()
    quiet = Loop(seconds=1.0, first_ms=[120.0] * 5).figures()
    return {
        "capacity_per_s": 100.0,
        "unloaded": Loop(seconds=1.0, first_ms=[5.0] * 20).figures(),
        "loads": {"1": loop, "1.5": loop, "3": loop},
        "healed_s": 0.0,
        "tenants": {"quiet": quiet, "noisy": loop},
    } | changes


def missed(run: dict[str, Any]) -> list[str]:
    return [name for name, _, kept in verdicts(run) if not kept]


def test_a_run_within_every_bound_keeps_every_bar() -> None:
    assert len(verdicts(found())) == 11
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
    run = found(loads={"1.5": bad, "3": bad}, healed_s=1.1, tenants={"quiet": quiet})
    assert len(missed(run)) == len(verdicts(run))


def test_a_loop_without_answers_or_refusals_misses_their_bars() -> None:
    empty = Loop(seconds=1.0).figures()
    names = " ".join(missed(found(loads={"1.5": empty, "3": empty})))
    assert "goodput" in names
    assert "first token" in names
    assert "refusals" in names


def test_a_refusal_needs_status_code_and_time() -> None:
    whole = b'HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\n\r\n{"error":{"code":"queue_full"}}'
    assert is_typed_refusal(whole)
    assert not is_typed_refusal(whole.replace(b"429", b"500"))
    assert not is_typed_refusal(whole.replace(b"retry-after", b"x"))
    assert not is_typed_refusal(whole.replace(b"queue_full", b"x"))

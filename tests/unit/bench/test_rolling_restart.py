"""Figures that the bench of rolling restarts reads from logs: no token computed again and no pause is missed."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from bench.rolling_restart import CLOCKS_S, NODES, Computed, Talk, compare, gap_at
from bench.stream_client import StreamResult


def answer(*, cached_tokens: int, pieces_s: tuple[float, ...] = (1.0, 2.0, 5.0)) -> StreamResult:
    return StreamResult(
        sent_s=0.0,
        first_token_s=pieces_s[0],
        end_s=pieces_s[-1],
        prompt_tokens=100,
        completion_tokens=3,
        cached_tokens=cached_tokens,
        pieces_s=pieces_s,
        text="x",
        finish_reason="stop",
    )


def write(file: Path, *lines: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    stamped = [{"timestamp": f"{number:03d}", "request_id": "r", **line} for number, line in enumerate(lines)]
    file.write_text("".join(json.dumps(line) + "\n" for line in stamped))


def read(directory: Path, *evaluated_tokens: int, cached_tokens: int, at_token: int = 7) -> Computed:
    """One answer of place c1-1 that was lost by all replicas but the last."""
    at = datetime.fromtimestamp(3.0 + CLOCKS_S, UTC).isoformat()
    losses = [{"event": "replica.lost", "at_token": at_token, "timestamp": at}] * (len(evaluated_tokens) - 1)
    write(directory / "gateway.log", *losses, {"event": "request.ended", "client_request_id": "c1-1"})
    for node, later_s in zip(NODES, (1.0, 10.0), strict=True):  # the second one is of another restart
        fetched_at = datetime.fromtimestamp(3.0 + CLOCKS_S + later_s, UTC).isoformat()
        line = {"event": "states.fetched", "bytes": 1000, "s": 0.5, "timestamp": fetched_at}
        write(directory / f"{node}.log", line)
    for number, tokens in enumerate(evaluated_tokens):
        line = {"event": "request.done", "evaluated_tokens": tokens, "timestamp": str(number)}
        write(directory / "a" / "logs" / f"runner-{number}.log", line)
    usual = Talk(results={"c1-1": answer(cached_tokens=90)})
    return compare(directory, usual, Talk(results={"c1-1": answer(cached_tokens=cached_tokens)}))


def test_of_an_answer_that_moved_all_inputs_but_the_last_are_computed_again(tmp_path: Path) -> None:
    found = read(tmp_path, 10, 1, 41, cached_tokens=90)
    assert (found.moved_tokens, found.retried_tokens, found.later_tokens, found.restarts) == (40, 0, 0, 2)
    assert found.gaps_s == pytest.approx([3.0, 3.0])
    assert found.over_s == pytest.approx([2.5, 2.5])
    assert (found.fetched, found.moved_bytes, found.bytes_per_s) == (2, 1000, 2000)


def test_a_prompt_that_moved_is_compared_with_the_undisturbed_one(tmp_path: Path) -> None:
    found = read(tmp_path, 10, 25, cached_tokens=75, at_token=0)
    assert (found.moved_tokens, found.retried_tokens, found.later_tokens) == (0, 15, 0)


def test_what_a_later_turn_does_not_find_again_counts(tmp_path: Path) -> None:
    found = read(tmp_path, 30, cached_tokens=70)
    assert (found.moved_tokens, found.retried_tokens, found.later_tokens, found.first_tokens) == (0, 0, 20, 0)


def test_a_gap_lies_between_pieces_on_both_sides_of_the_moment() -> None:
    assert gap_at((1.0, 2.0, 5.0), 2.0) == 3.0
    assert gap_at((1.0, 2.0), 0.5) == gap_at((1.0, 2.0), 3.0) == 0.0

"""A seeded sample of each bar that `make faults` runs at full strength, and bars that notice what they must."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from tests.faults.bars.__main__ import shown
from tests.faults.bars.bar import Bar, Round, judged
from tests.faults.bars.catalogue import BARS
from tests.faults.bars.open_loop import Tally, read_answer
from tests.waiting import Stopwatch


@pytest.mark.skipif(
    not os.environ.get("FAULTS_SAMPLE"),
    reason="takes minutes and was not yet timed on a quiet machine: set FAULTS_SAMPLE=1",
)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("bar", BARS, ids=[bar.key for bar in BARS])
def test_a_sample_of_the_bar_is_met(bar: Bar, tmp_path: Path) -> None:
    if why := bar.needs():
        pytest.skip(why)

    async def run() -> list[Round]:
        return [found async for found in bar.run(tmp_path / "rig", 0, bar.sample)]

    watch = Stopwatch()
    rounds = asyncio.run(run())
    report = judged(bar, rounds, size=bar.sample, disturbance=watch.disturbance())
    print(shown(report))
    if not report["met"] and report["not_measurable"]:
        pytest.skip(f"not measurable here: {report['not_measurable']}\n{shown(report)}")
    assert report["met"], shown(report)


def good_load(**changes: Any) -> dict[str, Any]:
    tally = Tally(asked=9, accepted=9, ended_once=9, ok=9, first_ms=[9.0], gap_ms=[9.0], whole_ms=[99.0], resumes=1)
    return tally.as_json() | changes


# Rounds with which each bar is met; every change below must make it miss.
KILLED = {"fault": "x", "proven": True, "load": good_load()}
GOOD: dict[str, list[Round]] = {
    "runner_kill": [KILLED | {"figures": {"capacity_back_s": 3.0, "load_s": 2.0}}],
    "leader_kill": [
        KILLED | {"figures": {"first_command_s": 6.0, "duplicates": 0, "restarted": 0, "was_skewed": True}}
    ],
    "redis_down": [
        {"phase": "before", "load": good_load()},
        KILLED | {"phase": "during", "control": [(0.1, 503)]},
        {"phase": "after", "load": good_load(), "figures": {"normal_s": 1.0, "restarted": 0}},
    ],
    "mid_placement": [KILLED | {"figures": {"repaired_s": 9.0, "runners": 1, "point": "sent"}}],
    "partition": [KILLED | {"figures": {"packets": 3, "healed_s": 1.0, "stopped": 0, "failed": 0}}],
    "disconnect": [
        KILLED | {"figures": {"freed_ms": [20.0], "busy": 0}},
        {"figures": {"descriptors": 0, "busy": 0}, "load": good_load()},
    ],
    "overload": [
        {"phase": "alone", "load": good_load(), "figures": {"peak_per_s": 10.0}},
        KILLED
        | {
            "phase": "overload",
            "load": good_load(refused=5, refused_ms=[5.0]),
            "figures": {"goodput_per_s": 9.5, "more_bytes": 0},
        },
        {"phase": "beside", "load": good_load()},
    ],
    "rolling": [KILLED | {"fault": "discovery replaced"}, {"load": good_load(), "figures": {"mixed_s": 60.0}}],
}


@pytest.mark.parametrize("bar", BARS, ids=[bar.key for bar in BARS])
@pytest.mark.parametrize(
    "change",
    [
        {"proven": False},
        {"load": good_load(ended_once=8)},
        {"load": good_load(wrong_bytes=1)},
        {"load": good_load(ok=8, other={"truncated": 1}, whole_ms=[200_000.0])},
    ],
    ids=["unproven", "ended-twice", "wrong-bytes", "truncated"],
)
def test_a_bar_is_missed_when_its_fault_or_its_load_is_wrong(bar: Bar, change: dict[str, Any]) -> None:
    rounds = GOOD[bar.key]
    assert judged(bar, rounds, size=1)["met"], shown(judged(bar, rounds, size=1))
    spoiled = [one | change if "fault" in one else one for one in rounds]
    assert not judged(bar, spoiled, size=1)["met"]


@pytest.mark.parametrize("bar", BARS, ids=[bar.key for bar in BARS])
def test_a_bar_without_rounds_is_missed(bar: Bar) -> None:
    assert not judged(bar, [], size=1)["met"]


@pytest.mark.parametrize(
    ("key", "figure", "value"),
    [
        ("runner_kill", "capacity_back_s", 4.1),
        ("leader_kill", "first_command_s", 7.1),
        ("leader_kill", "duplicates", 1),
        ("leader_kill", "restarted", 1),
        ("redis_down", "normal_s", 5.1),
        ("redis_down", "restarted", 1),
        ("mid_placement", "repaired_s", 15.1),
        ("mid_placement", "runners", 2),
        ("partition", "healed_s", 5.1),
        ("partition", "stopped", 1),
        ("disconnect", "freed_ms", [251.0]),
        ("disconnect", "busy", 1),
        ("disconnect", "descriptors", 1),
        ("overload", "goodput_per_s", 8.9),
        ("overload", "more_bytes", 2**27),
        ("rolling", "mixed_s", 0.0),
    ],
)
def test_a_bar_is_missed_with_one_bad_figure(key: str, figure: str, value: Any) -> None:
    (bar,) = [one for one in BARS if one.key == key]
    rounds = [
        one | {"figures": one["figures"] | {figure: value}} if figure in one.get("figures", {}) else one
        for one in GOOD[key]
    ]
    assert rounds != GOOD[key]
    assert not judged(bar, rounds, size=1)["met"]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n', "truncated"),
        (b'data: {"error":{"code":"runner_lost"}}\n\n', "error runner_lost"),
        (
            b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n',
            "ok",
        ),
        (2 * b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n', "truncated"),
    ],
    ids=["cut", "error", "whole", "two-ends"],
)
def test_the_end_of_an_answer_is_read_from_its_bytes(body: bytes, kind: str) -> None:
    assert read_answer([(1.0, b"HTTP/1.1 200 OK\r\n\r\n" + body)], due_s=0.0).kind == kind


def test_only_a_refusal_with_code_and_retry_after_is_one() -> None:
    head = b"HTTP/1.1 503 X\r\n"
    body = b'\r\n{"error":{"code":"no_replica"}}'
    assert read_answer([(1.0, head + b"Retry-After: 1\r\n" + body)], due_s=0.0).kind == "refused"
    assert read_answer([(1.0, head + body)], due_s=0.0).kind == "status 503"
    assert read_answer([(1.0, head + b"retry-after: 2\r\n\r\n")], due_s=0.0).kind == "refused"
    assert read_answer([], due_s=0.0, broken="hung").kind == "hung"

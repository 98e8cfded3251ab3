"""A seeded sample of each bar that `make faults` runs at full strength, and bars that notice what they must."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.faults.bars.__main__ import run_in_turn, shown
from tests.faults.bars.bar import Bar, Round, at_most, judged, shares
from tests.faults.bars.catalogue import BARS
from tests.faults.bars.disconnects import HELD
from tests.faults.bars.open_loop import Tally, read_answer
from tests.faults.bars.soak import slopes
from tests.faults.bars.suites import HOSTILE_MIN, run_tests
from tests.waiting import Stopwatch

LOADED = [bar for bar in BARS if bar.has_load]
SAMPLED = {bar.run: [one for one in BARS if one.run is bar.run] for bar in BARS if bar.sample}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("bars", SAMPLED.values(), ids=["-".join(one.key for one in bars) for bars in SAMPLED.values()])
def test_a_sample_of_the_bar_is_met(bars: list[Bar], tmp_path: Path) -> None:
    (first, *_) = bars
    if why := first.needs():
        pytest.skip(why)

    async def run() -> list[Round]:
        return [found async for found in first.run(tmp_path / "rig", first.left([], first.sample), first.sample)]

    watch = Stopwatch()
    rounds = asyncio.run(run())
    reports = [judged(bar, rounds, size=first.sample, disturbance=watch.disturbance()) for bar in bars]
    text = "\n".join(shown(report) for report in reports)
    print(text)
    missed = [report for report in reports if not report["met"]]
    assert all(report["not_measurable"] for report in missed), text
    if missed:
        pytest.skip(f"not measurable here: {missed[0]['not_measurable']}\n{text}")


def flat(*, bytes_per_minute: int = 0, descriptors_per_minute: float = 0) -> list[tuple[float, int, int, int]]:
    """Minutes of two hours of a process."""
    return [
        (60.0 * minute, 2**26 + bytes_per_minute * minute, 20 + int(descriptors_per_minute * minute), 1)
        for minute in range(120)
    ]


def good_load(**changes: Any) -> dict[str, Any]:
    tally = Tally(asked=9, accepted=9, ended_once=9, ok=9, first_ms=[9.0], gap_ms=[9.0], whole_ms=[99.0], resumes=1)
    return tally.as_json() | changes


# Rounds with which each bar is met; every change below must make it miss.
KILLED = {"fault": "x", "proven": True, "load": good_load()}
GOOD: dict[str, list[Round]] = {
    "runner_kill": [KILLED | {"figures": {"capacity_back_s": 3.0, "load_s": 2.0}}],
    "runner_hang": [KILLED | {"load": good_load(late_ms=[9.0]), "figures": {"replaced_s": 9.0, "stopped": 0}}],
    "child_only": [KILLED | {"figures": {"noticed_s": 0.5, "sent_later": 0}}],
    "zombie_leader": [KILLED | {"figures": {"stopped": 0, "refusals": 1, "runners": 1, "over_promised": 0}}],
    "redis_amnesia": [
        KILLED | {"figures": {"full_view_s": 9.0, "write_gap_s": 14.0, "stopped": 0, "fence_fell": 0, "strangers": 0}}
    ],
    "slow_clients": [
        {"phase": "before", "load": good_load()},
        KILLED | {"phase": "during", "figures": {"cut_s": 30.5, "more_mib": 63.0}},
    ],
    "node": [
        KILLED | {"figures": {"adopted_s": 2.9, "stopped": 0}},
        KILLED | {"figures": {"decided_s": 7.9, "stopped": 0}},
    ],
    "soak": [
        KILLED,
        {"load": good_load(), "seconds": 7200.0, "processes": {"gateway-0 7": flat()}},
        {"suite": "posture", "status": 0, "passed": 3, "failed": [], "late": [], "skipped": []},
    ],
    "leader_kill": [
        KILLED | {"figures": {"first_command_s": 6.0, "duplicates": 0, "restarted": 0, "was_skewed": True}}
    ],
    "redis_down": [
        {"phase": "before", "load": good_load()},
        KILLED | {"phase": "redis", "control": [(0.1, 503)]},
        {"phase": "between", "load": good_load()},
        KILLED | {"phase": "control plane", "control": [(0.1, 503)], "figures": {"own": 8}},
        {"phase": "after", "load": good_load(), "figures": {"normal_s": 1.0, "restarted": 0}},
    ],
    "mid_placement": [KILLED | {"figures": {"repaired_s": 9.0, "runners": 1, "point": "sent"}}],
    "partition": [
        KILLED | {"figures": {"packets": 3, "healed_s": 1.0, "stopped": 0, "failed": 0}},
        KILLED | {"figures": {"healed_s": 1.0, "stopped": 0, "silent_freed_s": 15.5}},
        KILLED | {"figures": {"healed_s": 1.0, "stopped": 0, "reset_freed_s": 0.1}},
        KILLED | {"figures": {"healed_s": 1.0, "stopped": 0, "goes_on_s": 4.9, "again_bytes": 0, "wrong_files": 0}},
        KILLED | {"figures": {"healed_s": 1.0, "stopped": 0, "known_s": 9.9, "refusals": 1}},
        {"fault": "x", "proven": True, "figures": {"stopped": 0, "lost_streams": 0, "beside_failed": 0}},
    ],
    "disconnect": [
        KILLED | {"figures": {"freed_ms": [20.0], "busy": 0}},
        {"figures": {**dict.fromkeys(HELD, 0.0), "busy": 0}, "load": good_load()},
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


@pytest.mark.parametrize("bar", LOADED, ids=[bar.key for bar in LOADED])
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
        ("runner_hang", "replaced_s", 10.1),
        ("runner_hang", "stopped", 1),
        ("child_only", "noticed_s", 1.1),
        ("child_only", "sent_later", 1),
        ("zombie_leader", "stopped", 1),
        ("zombie_leader", "refusals", 0),
        ("zombie_leader", "runners", 2),
        ("zombie_leader", "over_promised", 1),
        ("redis_amnesia", "full_view_s", 10.1),
        ("redis_amnesia", "write_gap_s", 15.1),
        ("redis_amnesia", "stopped", 1),
        ("redis_amnesia", "fence_fell", 1),
        ("redis_amnesia", "strangers", 1),
        ("slow_clients", "cut_s", 31.1),
        ("slow_clients", "more_mib", 65.0),
        ("node", "adopted_s", 3.1),
        ("node", "decided_s", 8.1),
        ("node", "stopped", 1),
        ("leader_kill", "first_command_s", 7.1),
        ("leader_kill", "duplicates", 1),
        ("leader_kill", "restarted", 1),
        ("redis_down", "normal_s", 5.1),
        ("redis_down", "restarted", 1),
        ("redis_down", "own", 7),
        ("mid_placement", "repaired_s", 15.1),
        ("mid_placement", "runners", 2),
        ("partition", "healed_s", 5.1),
        ("partition", "stopped", 1),
        ("partition", "silent_freed_s", 25.1),
        ("partition", "reset_freed_s", 1.1),
        ("partition", "goes_on_s", 5.1),
        ("partition", "again_bytes", 1),
        ("partition", "wrong_files", 1),
        ("partition", "known_s", 10.1),
        ("partition", "refusals", 0),
        ("partition", "lost_streams", 1),
        ("partition", "beside_failed", 1),
        ("disconnect", "freed_ms", [251.0]),
        ("disconnect", "busy", 1),
        *(("disconnect", name, 1.0) for name in HELD),
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
    "changes",
    [{"bytes_per_minute": 20_000}, {"descriptors_per_minute": 0.05}],
    ids=["1.1-MiB-an-hour", "3-descriptors-an-hour"],
)
def test_a_soak_is_missed_when_a_process_grows(changes: dict[str, Any]) -> None:
    (bar,) = [one for one in BARS if one.key == "soak"]
    rounds = [one | {"processes": {"host-a 7": flat(**changes)}} if "processes" in one else one for one in GOOD["soak"]]
    assert not judged(bar, rounds, size=1)["met"]


def test_a_process_that_came_late_has_no_slope() -> None:
    assert slopes({"host-b 9": flat()[-40:]}, 7200.0) == {}
    assert slopes({"host-b 9": flat(bytes_per_minute=2**20)[-60:]}, 7200.0)["host-b 9"]["mib_per_h"] == 60.0


def test_minutes_with_other_children_do_not_count() -> None:
    with_another = [(at_s, size, 24, 2) for at_s, size, _, _ in flat()[100:]]
    assert slopes({"host-a 7": flat()[:100] + with_another}, 7200.0)["host-a 7"]["descriptors_per_h"] == 0.0


SUITE = {"suite": "x", "status": 0, "passed": 3, "failed": [], "late": [], "skipped": []}


FUZZED = {"http_cases": [10_000, 40_000], "grpc_cases": [1700] * 12, "slowest_refusal_s": [1.9] * 14}


@pytest.mark.parametrize(
    ("changes", "is_met"),
    [
        ({}, True),
        ({"http_cases": [9_999, 40_000]}, False),
        ({"grpc_cases": [1700] * 11}, False),
        ({"slowest_refusal_s": [0.1, 2.1]}, False),
        ({"slowest_refusal_s": []}, False),
    ],
)
def test_a_fuzz_is_met_with_all_of_its_cases_and_quick_refusals(changes: dict[str, Any], is_met: bool) -> None:
    (bar,) = [one for one in BARS if one.key == "fuzz"]
    assert judged(bar, [SUITE | {"recorded": FUZZED | changes}], size=1)["met"] is is_met


@pytest.mark.parametrize("lacking", ["", *HOSTILE_MIN])
def test_hostile_models_are_met_with_all_of_their_items(lacking: str) -> None:
    (bar,) = [one for one in BARS if one.key == "hostile_model"]
    passed = {tests[0]: least - (what == lacking) for what, (least, tests) in HOSTILE_MIN.items()}
    assert judged(bar, [SUITE | {"passed_by_test": passed}], size=1)["met"] is (not lacking)


@pytest.mark.parametrize(("spellings", "is_met"), [(60, True), (59, False)])
def test_attacks_are_met_with_all_spellings_of_addresses(spellings: int, is_met: bool) -> None:
    (bar,) = [one for one in BARS if one.key == "egress"]
    attacked = {"suite": "x", "attacks": 1, "damage": 0, "not_runnable": 0, "spellings": spellings}
    assert judged(bar, [attacked], size=1)["met"] is is_met


@pytest.mark.parametrize(
    ("changes", "is_met", "is_measurable"),
    [
        ({}, True, True),
        ({"failed": ["test_x"], "status": 1}, False, True),
        ({"passed": 0, "status": 2}, False, True),
        ({"skipped": ["test_x: no engine"]}, False, True),
        ({"late": ["test_x: not measurable here"]}, False, False),
    ],
    ids=["passed", "failed", "none", "skipped", "late"],
)
def test_a_bar_of_tests_has_their_outcome(changes: dict[str, Any], is_met: bool, is_measurable: bool) -> None:
    (bar,) = [one for one in BARS if one.key == "authz"]
    report = judged(bar, [SUITE | changes], size=1, disturbance="others")
    assert (report["met"], is_met or report["not_measurable"] == "") == (is_met, is_met or is_measurable)


async def test_the_outcome_of_tests_is_read_from_their_report(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(
        "import pytest\n"
        "def test_good(record_property): record_property('cases', 7)\n"
        "def test_bad(): assert False\n"
        "def test_late(): pytest.skip('not measurable here: 2 s')\n"
        "def test_lacks(): pytest.skip('no engine')\n"
    )
    found = await run_tests([str(tmp_path)])
    assert (found["status"], found["passed"], found["failed"]) == (1, 1, ["test_bad"])
    assert found["recorded"] == {"cases": [7.0]}
    assert found["passed_by_test"] == {"test_good": 1}
    assert found["late"] == ["test_late: not measurable here: 2 s"]
    assert found["skipped"] == ["test_lacks: no engine"]


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


def test_rounds_are_shared_in_stretches_and_go_on_where_they_ended() -> None:
    bar = next(one for one in BARS if one.key == "zombie_leader")
    left = bar.left([{"number": 0}, {"number": 3}, {"load": {}}], 9)
    assert left == [1, 2, 4, 5, 6, 7, 8]
    assert shares(left, 3) == [[1, 2, 4], [5, 6, 7], [8]]
    assert shares([], 3) == [[]]


async def test_only_the_soak_runs_beside_other_bars() -> None:
    running: set[str] = set()
    beside: dict[str, set[str]] = {}

    async def run(bar: Bar) -> None:
        running.add(bar.key)
        for _ in range(99 if bar.key == "soak" else 3):
            beside.setdefault(bar.key, set()).update(running - {bar.key})
            await asyncio.sleep(0)
        running.remove(bar.key)

    await run_in_turn(BARS, run)
    others = {bar.key for bar in BARS} - {"soak"}
    assert beside == {"soak": others} | {key: {"soak"} for key in others}


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([1.0] * 9 + [2.0], "the sample is too small"),
        ([1.0] * 8 + [2.0] * 2, ""),
        ([1.0] * 98 + [2.0] * 2, ""),
        ([], ""),
    ],
    ids=["one-of-ten", "two-of-ten", "two-of-a-hundred", "none"],
)
def test_a_single_slow_value_of_few_is_no_99th_percentile(values: list[float], verdict: str) -> None:
    bar = replace(BARS[0], judge=lambda _: [at_most("answers", values, 1.5, "s", share=0.99)], has_load=False)
    report = judged(bar, [], size=1)
    assert (report["met"], report["not_measurable"]) == (False, verdict)


def test_only_a_refusal_with_code_and_retry_after_is_one() -> None:
    head = b"HTTP/1.1 503 X\r\n"
    body = b'\r\n{"error":{"code":"no_replica"}}'
    assert read_answer([(1.0, head + b"Retry-After: 1\r\n" + body)], due_s=0.0).kind == "refused"
    assert read_answer([(1.0, head + body)], due_s=0.0).kind == "status 503"
    assert read_answer([(1.0, head + b"retry-after: 2\r\n\r\n")], due_s=0.0).kind == "refused"
    assert read_answer([], due_s=0.0, broken="hung").kind == "hung"


def test_a_rate_that_others_may_have_lowered_is_not_measurable_and_a_lost_answer_is_missed() -> None:
    (bar,) = [one for one in BARS if one.key == "overload"]
    slow = [
        one | {"figures": one["figures"] | {"goodput_per_s": 5.0}} if one["phase"] == "overload" else one
        for one in GOOD["overload"]
    ]
    assert judged(bar, slow, size=1, disturbance="others")["not_measurable"] == "others"
    lost = [one | {"load": good_load(ended_once=8)} if "fault" in one else one for one in slow]
    assert judged(bar, lost, size=1, disturbance="others")["not_measurable"] == ""

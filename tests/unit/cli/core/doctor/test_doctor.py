from collections.abc import Iterable
from typing import Any

import pytest

from cli.core.doctor.assessments import (
    GIB,
    CheckedModels,
    SentinelAnswer,
    TriedDevice,
    assess_certificate,
    assess_crashes,
    assess_devices,
    assess_disk,
    assess_engine,
    assess_filters,
    assess_listed,
    assess_models,
    assess_nodes,
    assess_ollama,
    assess_open_files,
    assess_port,
    assess_readiness,
    assess_redis,
    assess_sandbox,
    assess_sentinels,
    assess_skew,
    assess_unknown,
    assess_unused_cards,
    assess_users,
    assess_version,
)
from cli.core.doctor.findings import Finding, Level, has_failed, ok, skip, summary, warn
from common.network import listening_inodes
from common.settings import KNOWN_NAMES
from runner.core.devices.device_settings import IntegratedGpus

GOOD_REDIS: dict[str, Any] = {
    "redis_version": "7.4",
    "role": "master",
    "maxmemory": 0,
    "maxmemory_policy": "noeviction",
    "aof_enabled": 1,
    "aof_last_write_status": "ok",
    "rdb_last_bgsave_status": "ok",
}
GOOD_ENGINE: dict[str, Any] = {"build": "b", "backends": ["CPU"], "rpc": True, "computed": True, "trouble": ""}


def worst(findings: Iterable[Finding]) -> Level:
    return max((one.level for one in findings), key=list(Level).index)


def texts(findings: Iterable[Finding]) -> str:
    return "\n".join(f"{one.text}; {one.advice}" for one in findings)


def tried(kind: str, name: str = "X0", trouble: str | None = None) -> TriedDevice:
    return TriedDevice(
        id=name.lower(), name=name, kind=kind, description="d", total_bytes=GIB, free_bytes=GIB, trouble=trouble
    )


def test_only_failures_fail() -> None:
    findings = [ok("a", ""), skip("a", ""), warn("a", "", "x")]

    assert not has_failed(findings)
    assert summary(findings) == "1 to look at"
    assert summary([ok("a", "")]) == "nothing to complain about"


def test_everything_that_is_wrong_says_what_to_do() -> None:
    wrong = [
        *assess_engine(report=None, exit_code=-11, last_line="", has_amx=True),
        *assess_devices([tried("gpu", trouble="t")], excluded=frozenset({"y"}), integrated=IntegratedGpus.AUTO),
        *assess_redis({**GOOD_REDIS, "role": "slave", "maxmemory_policy": "allkeys-lru"}, save=""),
        assess_skew("c", 100.0),
        *assess_nodes([]),
        *assess_unknown(["PUNA_X"], KNOWN_NAMES),
    ]

    assert all(one.advice for one in wrong if one.level in (Level.WARN, Level.FAIL))


def test_a_crash_of_the_engine_is_blamed_on_the_compiler_where_amx_is() -> None:
    with_amx = list(assess_engine(report=None, exit_code=-11, last_line="", has_amx=True))
    without = list(assess_engine(report=None, exit_code=-4, last_line="", has_amx=False))

    assert worst(with_amx) is worst(without) is Level.FAIL
    assert "-fno-tree-dse" in texts(with_amx)
    assert "another processor" in texts(without)


def test_an_engine_that_computes_is_well_and_one_without_rpc_is_told() -> None:
    assert worst(assess_engine(report=GOOD_ENGINE, exit_code=0, last_line="", has_amx=True)) is Level.OK
    assert (
        worst(assess_engine(report={**GOOD_ENGINE, "rpc": False}, exit_code=0, last_line="", has_amx=False))
        is Level.WARN
    )
    assert worst(assess_engine(report=None, exit_code=1, last_line="No module", has_amx=False)) is Level.FAIL
    wrong = assess_engine(report={**GOOD_ENGINE, "trouble": "no context"}, exit_code=1, last_line="", has_amx=False)
    assert "no context" in texts(wrong)


def test_devices_that_are_left_out_say_why() -> None:
    devices = [tried("gpu", "GPU0"), tried("integrated", "IGPU"), tried("gpu", "GPU1"), tried("cpu", "CPU")]
    said = texts(assess_devices(devices, excluded=frozenset({"gpu1"}), integrated=IntegratedGpus.AUTO))

    assert "IGPU (d), 1.1 GB free of 1.1 GB: left out beside a discrete GPU" in said
    assert "GPU1 (d), 1.1 GB free of 1.1 GB: left out, PUNA_EXCLUDED_DEVICES names it" in said


def test_an_integrated_gpu_is_used_where_the_discrete_one_is_broken() -> None:
    devices = [tried("gpu", "GPU0", trouble="wrong sum"), tried("integrated", "IGPU")]
    findings = list(assess_devices(devices, excluded=frozenset(), integrated=IntegratedGpus.AUTO))

    assert findings[0].level is Level.FAIL
    assert "left out" not in findings[1].text


def test_a_card_that_the_build_does_not_know_is_told() -> None:
    assert worst(assess_unused_cards(["NVIDIA X"], [tried("cpu")])) is Level.WARN
    assert list(assess_unused_cards(["NVIDIA X"], [tried("gpu")])) == []
    assert list(assess_unused_cards([], [tried("cpu")])) == []


@pytest.mark.parametrize(
    ("taken", "is_ours", "is_puna", "level"),
    [
        (False, False, False, Level.OK),
        (True, True, False, Level.OK),
        (True, False, True, Level.OK),
        (True, False, False, Level.FAIL),
    ],
)
def test_a_port_is_free_ours_or_somebody_elses(taken: bool, is_ours: bool, is_puna: bool, level: Level) -> None:
    finding = assess_port(
        name="HTTP",
        address="127.0.0.1:1",
        variable="PUNA_HOST",
        taken=taken,
        owner="ollama (pid 1)",
        is_ours=is_ours,
        is_puna=is_puna,
    )

    assert finding.level is level
    assert ("ollama (pid 1)" in finding.text) == (level is Level.FAIL or is_puna)


@pytest.mark.parametrize(
    ("free", "writable", "level"),
    [
        (100 * GIB, True, Level.OK),
        (5 * GIB, True, Level.WARN),
        (GIB // 2, True, Level.FAIL),
        (100 * GIB, False, Level.FAIL),
    ],
)
def test_disks_need_room_and_must_be_writable(free: int, writable: bool, level: Level) -> None:
    finding = assess_disk(what="PUNA_HOME", path="/x", free_bytes=free, total_bytes=200 * GIB, writable=writable)

    assert finding.level is level


def test_broken_models_are_named_and_good_ones_counted() -> None:
    def assessed(troubles: dict[str, str], **more: Any) -> list[Finding]:
        return list(assess_models(CheckedModels(troubles=troubles, **more), directory="/m"))

    findings = assessed({"a": "", "b": "truncated", "c": ""}, renamed={"a": "a (1).gguf", "b": "b b.gguf"})

    assert [one.level for one in findings] == [Level.OK, Level.OK, Level.FAIL]
    assert [one.text for one in findings] == ["2 usable in /m", "a (1).gguf is served as a", "b: truncated"]
    assert [one.text for one in assessed({})] == ["none yet in /m"]
    assert [one.level for one in assessed({"b": "x"})] == [Level.FAIL]
    (finding,) = assessed({}, answers=False)
    assert (finding.level, finding.text) == (Level.FAIL, "/m does not answer")


def test_models_that_the_server_lists_as_unusable_are_named_once() -> None:
    listed = [
        {"name": "good:latest"},
        {"name": "here:latest", "error": "a FIFO"},
        {"name": "far:latest", "error": "/m/far.gguf: a FIFO"},
    ]
    (finding,) = assess_listed(listed, named=frozenset({"here:latest"}))
    assert (finding.level, finding.text) == (Level.FAIL, "far:latest: /m/far.gguf: a FIFO")


def test_limits_and_clocks() -> None:
    assert assess_open_files(1024).level is Level.WARN
    assert "ulimit -Hn 65536" in assess_open_files(1024).advice
    assert assess_open_files(1048576).level is assess_open_files(-1).level is Level.OK


def test_a_kernel_that_cannot_confine_runners_is_a_warning() -> None:
    assert [assess_sandbox(version).level for version in (0, 3, 5, 6)] == [*[Level.WARN] * 3, Level.OK]
    assert "no Landlock" in assess_sandbox(0).text
    assert "without rules for the network" in assess_sandbox(3).text
    assert "without rules for signals" in assess_sandbox(5).text
    assert assess_filters(has_filters=True).level is Level.OK
    lacking = assess_filters(has_filters=False)
    assert (lacking.level, "no seccomp filters" in lacking.text) == (Level.WARN, True)
    assert assess_skew("c", 0.7).level is Level.OK
    assert assess_skew("c", -6.0).text == "c is 6.0 s behind"
    assert assess_skew("c", 61.0).level is Level.FAIL


def test_root_that_cannot_separate_runners_is_a_warning() -> None:
    assert (
        assess_users(is_root=True, fault="").text == "runners of a host that this user starts have users of their own"
    )
    assert assess_users(is_root=False, fault="it is not root").level is Level.OK
    lacking = assess_users(is_root=True, fault="it lacks CAP_KILL")
    assert (lacking.level, "it lacks CAP_KILL" in lacking.text) == (Level.WARN, True)


def test_a_redis_that_may_forget_is_told() -> None:
    assert worst(assess_redis(GOOD_REDIS, save="")) is Level.OK
    assert worst(assess_redis({**GOOD_REDIS, "maxmemory_policy": "allkeys-lru", "maxmemory": 1}, save="")) is Level.FAIL
    assert worst(assess_redis({**GOOD_REDIS, "maxmemory_policy": "allkeys-lru"}, save="")) is Level.WARN
    assert worst(assess_redis({**GOOD_REDIS, "aof_enabled": 0}, save="")) is Level.WARN
    assert worst(assess_redis({**GOOD_REDIS, "aof_enabled": 0}, save="900 1")) is Level.OK
    assert worst(assess_redis({**GOOD_REDIS, "aof_enabled": 0}, save=None)) is Level.OK  # Redis forbids CONFIG GET
    assert worst(assess_redis({**GOOD_REDIS, "role": "slave"}, save="")) is Level.FAIL
    assert worst(assess_redis({**GOOD_REDIS, "rdb_last_bgsave_status": "err"}, save="")) is Level.FAIL


def sentinel(address: str, primary: str = "r:1", trouble: str = "") -> SentinelAnswer:
    return SentinelAnswer(address=address, primary=primary, quorum=2, trouble=trouble)


def test_sentinels_must_be_enough_and_of_one_mind() -> None:
    silent = sentinel("c", trouble="silent")

    assert worst(assess_sentinels([sentinel("a"), sentinel("b"), sentinel("c")], set_name="s")) is Level.OK
    assert worst(assess_sentinels([sentinel("a"), sentinel("b"), silent], set_name="s")) is Level.WARN
    assert worst(assess_sentinels([sentinel("a"), silent, silent], set_name="s")) is Level.FAIL
    assert worst(assess_sentinels([silent, silent, silent], set_name="s")) is Level.FAIL
    two_minds = [sentinel("a"), sentinel("b", "r:2"), sentinel("c")]
    assert "different primaries: r:1, r:2" in texts(assess_sentinels(two_minds, set_name="s"))


def test_who_answers_is_told_by_its_version() -> None:
    def level(answer: dict[str, Any]) -> Level:
        return assess_version(url="http://x", answer=answer, own_version="1").level

    assert level({"puna": "1", "version": "0"}) is Level.OK
    assert level({"puna": "2", "version": "0"}) is Level.WARN
    assert level({"version": "0.9"}) is Level.FAIL
    assert level({}) is Level.FAIL
    assert assess_readiness(200, {}).level is Level.OK
    assert assess_readiness(503, {"status": "no_routes"}).level is Level.FAIL
    waiting = assess_readiness(200, {"status": "ok", "waits_for": "a node to know its devices"})
    assert (waiting.level, waiting.text) == (Level.WARN, "it takes requests, and waits for a node to know its devices")
    assert assess_readiness(503, {"status": "draining"}).level is Level.WARN


def test_nodes_and_devices_tell_what_is_wrong_with_them() -> None:
    device = {"name": "GPU0", "state": "ok", "trust": "measured"}
    lost = {**device, "state": "lost", "state_reason": "its driver is gone"}
    broken = {**device, "state": "excluded", "state_reason": "test", "check_last_line": "wrong sum"}
    chosen = {**device, "state": "excluded", "state_reason": "PUNA_EXCLUDED_DEVICES"}

    def level(*devices: dict[str, Any], state: str = "ready", build: str = "b") -> Level:
        return worst(assess_nodes([{"id": "n", "state": state, "build": build, "devices": list(devices)}]))

    assert level(device) is level(chosen) is Level.OK
    assert level(lost) is level(broken) is Level.FAIL
    assert level({**device, "trust": "stale"}) is level({**device, "state": "suspect"}) is Level.WARN
    assert level(device, state="suspect") is level(device, state="drained") is Level.WARN
    assert worst(assess_nodes([{"id": "n", "state": "ready", "build": one} for one in "ab"])) is Level.WARN


def test_a_runner_that_does_not_answer_is_named() -> None:
    runners = [{"model": "a:latest", "state": "not_responding"}, {"model": "b:latest", "state": "ready"}]
    found = list(assess_nodes([{"id": "n", "state": "ready", "runners": runners}]))
    assert [one.text for one in found if one.level is Level.WARN] == ["n: the runner of a:latest does not answer"]


def test_a_model_that_crashes_is_a_failure_until_a_replica_of_it_serves_again() -> None:
    row = {"model": "m:latest", "node": "n", "crashes": 3, "retry_at_unix_ms": 1_002_000, "error": "signal 9"}
    node: dict[str, Any] = {"id": "n", "state": "ready", "crash_rows": [row], "runners": []}
    (found,) = assess_crashes([node], now_unix_s=1000.0)
    assert found.level is Level.FAIL
    assert found.text == "m:latest on n crashed 3 times in a row, next try in 2 seconds: signal 9"
    assert "`puna load m:latest` tries it at once" in found.advice
    for state, level in (("error", Level.FAIL), ("loading", Level.FAIL), ("ready", Level.WARN)):
        runners = [{"model": "m:latest", "state": state}]
        assert worst(assess_crashes([{**node, "runners": runners}], now_unix_s=1000.0)) is level
    assert list(assess_crashes([{"id": "n", "state": "ready"}], now_unix_s=0.0)) == []


def test_misspelt_settings_are_told_with_the_nearest_name() -> None:
    assert "did you mean PUNA_HOST?" in texts(assess_unknown(["PUNA_HOSTT"], KNOWN_NAMES))


def test_names_of_ollama_tell_whether_they_count() -> None:
    findings = list(
        assess_ollama(
            set_names=["OLLAMA_HOST", "OLLAMA_MODELS", "OLLAMA_NOPE"],
            counting={"OLLAMA_HOST": "PUNA_HOST"},
            known=frozenset({"OLLAMA_HOST", "OLLAMA_MODELS"}),
        )
    )

    assert [one.level for one in findings] == [Level.OK, Level.OK, Level.WARN]
    assert findings[0].text == "OLLAMA_HOST counts as PUNA_HOST"


def test_listeners_are_found_in_the_table_of_the_kernel() -> None:
    table = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 0100007F:2CAA 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100\n"
        "   1: 0100007F:2CAA 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0 100\n"
        "   2: 0100007F:2CAB 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4713 1 0 100\n"
    )

    assert list(listening_inodes(table, 11434)) == [4711]


@pytest.mark.parametrize(
    ("late", "ended", "here", "level", "text"),
    [
        (False, False, False, Level.OK, "node/a is good until T"),
        (True, False, False, Level.WARN, "was not renewed after half of its life; look whether the cluster answers"),
        (True, True, False, Level.FAIL, "node/a ended at T; look whether the cluster answers"),
        (True, True, True, Level.WARN, "`puna trust renew --watch` renew it"),
    ],
)
def test_a_certificate_is_named_once_it_should_have_been_renewed(
    late: bool, ended: bool, here: bool, level: Level, text: str
) -> None:
    found = assess_certificate("node/a", ends="T", is_late=late, has_ended=ended, has_authority=here)
    assert found.level is level
    assert text in texts([found])

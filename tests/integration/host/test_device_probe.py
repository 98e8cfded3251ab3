"""Devices that a host accepts: a build of the engine whose cards crash, hang and appear twice, real processes."""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop

from common.clock import SystemClock
from common.errors import InternalError
from protos import cluster_pb2
from runner.core.devices.device_settings import DeviceSettings
from runner.core.host.environment import HIDING
from runner.host.devices import devices, gpu_watch
from runner.host.devices.device_notes import DeviceNotes
from runner.host.devices.devices import Devices
from runner.host.devices.hot_plug import HotPlug, SleepWatch
from runner.host.processes import children
from tests.fake_nvml import FakeNvml, Slice
from tests.integration.host.fake_build import CPU, EXCLUDED, GIB, LOST, OK, SUSPECT, Engine, by_id, card, gpu
from tests.integration.host.hung_cards import hurry
from tests.integration.host.node import is_alive
from tests.waiting import Stopwatch, until

pytestmark = pytest.mark.behaviour("B-130")


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    return Engine(tmp_path, monkeypatch)


@pytest.fixture
def drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    library = FakeNvml(tmp_path)
    library.tell(card(1), card(2))
    monkeypatch.setenv("LD_LIBRARY_PATH", library.environment["LD_LIBRARY_PATH"])
    return library


@pytest.mark.parametrize(
    ("how", "reason", "exit_code"),
    [
        ("crashes", "its test failed: signal 6: CUDA error: no kernel image is available", -6),
        ("hangs", "its test failed: it did not answer in time", None),
        ("lists nothing", "the engine lists nothing when it sees this device alone", None),
    ],
)
async def test_a_device_that_fails_its_test_is_left_out_with_the_reason_and_the_others_are_used(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, how: str, reason: str, exit_code: int | None
) -> None:
    if how == "hangs":
        hurry(monkeypatch, lambda arguments, _: "GPU-1" in arguments)
    engine.write(checks={"GPU-1": how})
    table = Devices(SystemClock())
    await table.probe()
    found = by_id(table)
    assert (found["GPU-1"].state, found["GPU-2"].state, found["cpu"].state) == (EXCLUDED, OK, OK)
    assert found["GPU-1"].state_reason.startswith(reason)
    assert found["GPU-1"].HasField("check_exit_code") == (exit_code is not None)
    assert found["GPU-1"].check_exit_code == (exit_code or 0)
    assert ("no kernel image" in found["GPU-1"].check_last_line) == (how == "crashes")
    assert table.free_bytes().keys() == {"cpu", "GPU-2"}
    assert found["GPU-2"].speed_bytes_s == 1000


async def test_each_device_is_tested_alone(engine: Engine, drivers: FakeNvml) -> None:
    table = Devices(SystemClock())
    await table.probe()
    checks = {call["arguments"][1]: call["limit"] for call in engine.calls() if "--check" in call["arguments"]}
    assert checks == {"GPU-1": "GPU-1", "GPU-2": "GPU-2", "cpu": "-1"}


async def test_a_device_that_hangs_does_not_hold_up_the_start(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "FIRST_CHECK_WAIT_S", 0.5)
    engine.write(checks={"GPU-1": "hangs"})
    table = Devices(SystemClock())
    watching = asyncio.create_task(table.watch())
    try:
        await table.start()
        await until(lambda: by_id(table)["cpu"].state == OK, deadline_s=20, what="the CPU is tested")
        hanging = by_id(table)["GPU-1"]
        assert (hanging.state, hanging.state_reason) == (SUSPECT, "it has not been tested yet")
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("kills_listing", "signal 6: no kernel image is available for execution on the device"),
        ("hangs_listing", "it did not answer in time"),
    ],
)
async def test_a_card_that_kills_or_hangs_the_listing_does_not_take_the_others_with_it(
    engine: Engine, drivers: FakeNvml, monkeypatch: pytest.MonkeyPatch, what: str, reason: str
) -> None:
    if what == "hangs_listing":
        hurry(monkeypatch, lambda _, environment: "GPU-1" in environment.get("CUDA_VISIBLE_DEVICES", "GPU-1"))
    engine.write(**{what: ["GPU-1"]})
    table = Devices(SystemClock())
    await table.probe()
    found = by_id(table)
    assert (found["GPU-1"].state, found["GPU-2"].state, found["cpu"].state) == (EXCLUDED, OK, OK)
    assert found["GPU-1"].state_reason == f"the probe failed: {reason}"
    assert table.engine_build == "fake 1"


async def test_a_build_that_crashes_without_any_card_leaves_its_last_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = "import os, sys; print('no kernel image', file=sys.stderr, flush=True); os.abort()"
    monkeypatch.setattr(children, "runner_command", lambda *_: [sys.executable, "-c", program])
    table = Devices(SystemClock())
    await table.probe()
    (cpu,) = table.devices()
    assert (cpu.state, cpu.state_reason) == (EXCLUDED, "the probe failed: signal 6: no kernel image")
    assert (cpu.check_exit_code, cpu.check_last_line) == (-6, "no kernel image")
    assert cpu.free_bytes > 0  # RAM is known without the engine
    assert table.free_bytes() == {}


async def test_a_system_that_starts_no_process_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "runner_command", lambda *_: ["/nonexistent/python"])
    async with asyncio.timeout(20):
        with pytest.raises(InternalError, match="cannot start a runner"):
            await Devices(SystemClock()).start()


async def test_a_probe_that_hangs_is_killed_with_everything_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"
    # It must have written before its time is up, so it imports next to nothing.
    program = (
        "import os, signal, sys\n"
        "child = os.fork()\n"
        "if child:\n"
        "    with open(sys.argv[1], 'a') as file:\n"
        "        file.write(f'{os.getpid()} {child} ')\n"
        "signal.pause()\n"
    )
    monkeypatch.setattr(children, "runner_command", lambda *_: [sys.executable, "-S", "-c", program, str(pids)])
    monkeypatch.setattr(devices, "CARDS_TIMEOUT_S", 3.0)
    table = Devices(SystemClock(), settings=DeviceSettings(probe_timeout_s=3.0))
    watch = Stopwatch()
    await table.probe()
    took_s = watch.wall_s
    started = [int(pid) for pid in pids.read_text().split()]
    assert len(started) == 2 * (1 + 1 + 1 + len(HIDING))  # the cards, everything, nothing, and each backend
    await until(lambda: not any(is_alive(pid) for pid in started), what="all of them are gone")
    (cpu,) = table.devices()
    assert cpu.state_reason == "the probe failed: it did not answer in time"
    watch.assert_within(15, "the probe", took_s=took_s)


async def test_a_card_of_two_backends_is_used_through_the_one_that_works(engine: Engine) -> None:
    twins = [CPU, gpu(1, "Vulkan"), gpu(1), gpu(2, "Vulkan"), gpu(2)]
    engine.write(backends=["CUDA", "Vulkan", "CPU"], devices=twins, checks={"CUDA GPU-2": "crashes"})
    table = Devices(SystemClock())
    await table.probe()
    found = [(device.id, device.backend, device.state) for device in table.devices()]
    assert found == [("cpu", "CPU", OK), ("GPU-1", "CUDA", OK), ("GPU-2", "Vulkan", OK)]
    # A runner on the second card must not meet it through the broken backend.
    assert table.environment(["GPU-2"])["CUDA_VISIBLE_DEVICES"] == "-1"


async def test_a_speed_is_measured_once_for_each_build_and_driver(
    engine: Engine, drivers: FakeNvml, tmp_path: Path
) -> None:
    notes = tmp_path / "devices.json"
    await Devices(SystemClock(), notes=DeviceNotes(notes)).probe()
    again = Devices(SystemClock(), notes=DeviceNotes(notes))
    await again.probe()
    assert engine.timed() == 3  # the cards and the CPU, once each
    assert by_id(again)["GPU-1"].speed_bytes_s == 1000
    drivers.tell(card(1), card(2), driver="600")
    await Devices(SystemClock(), notes=DeviceNotes(notes)).probe()
    assert engine.timed() == 5  # the CPU has no driver


@pytest.mark.behaviour("B-131")
async def test_figures_of_the_driver_replace_those_of_the_probe_and_follow_it_at_once(
    engine: Engine, drivers: FakeNvml
) -> None:
    table = Devices(SystemClock())
    watching = asyncio.create_task(table.watch())
    try:
        await table.start()
        first = by_id(table)["GPU-1"]
        assert (first.free_bytes, first.free_source, first.driver) == (70 * GIB, "nvml", "nvidia 580.95.05")
        seen, watch = table.changes.version, Stopwatch()
        drivers.tell(card(1, free_bytes=5 * GIB), card(2))
        while by_id(table)["GPU-1"].free_bytes != 5 * GIB:
            seen = await table.changes.beyond(seen)
        assert by_id(table)["GPU-1"].trust == cluster_pb2.TRUST_MEASURED
        watch.assert_within(2, "the driver's figure is shown")
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_a_card_that_falls_off_the_bus_is_lost_and_tested_when_it_returns(
    engine: Engine, drivers: FakeNvml
) -> None:
    table = Devices(SystemClock())
    watching = asyncio.create_task(table.watch())

    def state() -> "cluster_pb2.DeviceState.ValueType":
        return by_id(table)["GPU-2"].state

    try:
        await table.start()
        assert state() == OK
        drivers.tell(card(1))
        await until(lambda: state() == LOST, what="the card is lost")
        assert by_id(table)["GPU-2"].state_reason == "its driver does not list it any more"
        assert by_id(table)["GPU-1"].state == OK
        engine.write(checks={"GPU-2": "crashes"})
        drivers.tell(card(1), card(2))
        await until(lambda: state() == EXCLUDED, what="the card is back, and broken")
        engine.write(checks={})
        assert (await table.reset("GPU-2")).state == OK
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_while_a_driver_hangs_nothing_new_is_placed_on_its_cards_and_none_is_lost(
    engine: Engine, drivers: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_watch, "FIRST_LINE_TIMEOUT_S", 4.0)
    monkeypatch.setattr(gpu_watch, "RESTART_S_MIN", 0.05)
    monkeypatch.setattr(gpu_watch, "RESTART_S_MAX", 0.05)
    table = Devices(SystemClock())
    watching = asyncio.create_task(table.watch())
    try:
        await table.start()
        drivers.hang()
        await until(lambda: by_id(table)["GPU-1"].state != OK, deadline_s=20, what="the silence is noticed")
        told = by_id(table)["GPU-1"]
        assert (told.state, told.state_reason) == (SUSPECT, "its driver does not answer")
        assert told.trust == cluster_pb2.TRUST_STALE
        assert table.free_bytes().keys() == {"cpu"}
        assert by_id(table)["cpu"].state == OK
        tests = engine.card_tests()
        drivers.tell(card(1), card(2))
        await until(lambda: by_id(table)["GPU-1"].state == OK, deadline_s=20, what="the cards are used again")
        assert engine.card_tests() == tests + 2
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_a_card_that_is_plugged_in_is_found_and_tested(engine: Engine, drivers: FakeNvml) -> None:
    engine.write(devices=[CPU, gpu(1)])
    drivers.tell(card(1))
    table = Devices(SystemClock())
    watching = asyncio.create_task(table.watch())
    try:
        await table.start()
        assert by_id(table).keys() == {"cpu", "GPU-1"}
        engine.write(devices=[CPU, gpu(1), gpu(2)])
        drivers.tell(card(1), card(2))
        await until(
            lambda: "GPU-2" in by_id(table) and by_id(table)["GPU-2"].state == OK, deadline_s=20, what="a new card"
        )
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_errors_of_three_models_exclude_a_device_over_restarts_until_somebody_clears_it(
    engine: Engine, drivers: FakeNvml, tmp_path: Path
) -> None:
    notes = tmp_path / "devices.json"
    table = Devices(SystemClock(), notes=DeviceNotes(notes))
    await table.probe()
    for model in "abc":
        assert by_id(table)["GPU-1"].state == OK
        table.see_device_error(["GPU-1"], "CUDA error: unspecified launch failure", model_digest=model)
        assert by_id(table)["GPU-1"].state in (SUSPECT, EXCLUDED)
        await table.check()
    assert by_id(table)["GPU-1"].state == EXCLUDED
    assert "3 runners ended within 10 min" in by_id(table)["GPU-1"].state_reason

    again = Devices(SystemClock(), notes=DeviceNotes(notes))
    await again.probe()
    assert by_id(again)["GPU-1"].state == EXCLUDED
    assert (await again.reset("GPU-1")).state == OK

    drivers.tell(card(1), card(2), driver="600")
    newer = Devices(SystemClock(), notes=DeviceNotes(notes))
    await newer.probe()
    assert by_id(newer)["GPU-1"].state == OK


async def test_another_driver_gives_an_excluded_device_another_chance(engine: Engine, drivers: FakeNvml) -> None:
    table = Devices(SystemClock())
    await table.probe()
    for model in "abc":
        table.see_device_error(["GPU-1"], "CUDA error", model_digest=model)
    watching = asyncio.create_task(table.watch())
    try:
        assert by_id(table)["GPU-1"].state == EXCLUDED
        drivers.tell(card(1), card(2), driver="600")
        await until(lambda: by_id(table)["GPU-1"].state == OK, what="used again with the new driver")
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_after_a_suspend_every_card_is_tested_again(engine: Engine) -> None:
    slept_s = [0.0]
    table = Devices(SystemClock(), hot_plug=HotPlug(reprobe_s=60, sleep_watch=SleepWatch(lambda: slept_s[0])))
    watching = asyncio.create_task(table.watch())
    try:
        await table.start()
        tests = engine.card_tests()
        slept_s[0] = 3600.0
        await until(lambda: by_id(table)["GPU-1"].state == SUSPECT, what="doubted")
        assert by_id(table)["GPU-1"].state_reason == "the machine was asleep, and it is tested"
        await until(lambda: by_id(table)["GPU-1"].state == OK, deadline_s=20, what="tested")
        assert engine.card_tests() == tests + 2
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_a_device_that_the_configuration_leaves_out_is_shown_and_never_tested(engine: Engine) -> None:
    table = Devices(SystemClock(), settings=DeviceSettings(excluded=frozenset({"GPU-1"})))
    await table.probe()
    device = by_id(table)["GPU-1"]
    assert (device.state, device.state_reason) == (EXCLUDED, "excluded by PUNA_EXCLUDED_DEVICES")
    assert not any("GPU-1" in call["arguments"] for call in engine.calls())
    assert (await table.reset("GPU-1")).state == EXCLUDED


@pytest.mark.parametrize("restarted", [False, True])
async def test_an_id_stays_when_the_driver_names_the_card_later(
    engine: Engine, drivers: FakeNvml, tmp_path: Path, restarted: bool
) -> None:
    engine.write(drivers_name_cards=True)
    drivers.tell()
    notes = tmp_path / "devices.json"
    table = Devices(SystemClock(), notes=DeviceNotes(notes))
    await table.probe()
    ids = {"cpu", "0000:01:00.0", "0000:02:00.0"}
    assert by_id(table).keys() == ids
    drivers.tell(card(1), card(2))
    table = Devices(SystemClock(), notes=DeviceNotes(notes)) if restarted else table
    await table.probe()
    assert {device.id: device.state for device in table.devices()} == dict.fromkeys(ids, OK)


async def test_an_id_stays_while_a_driver_is_late_and_another_card_in_its_place_gets_its_own(
    engine: Engine, drivers: FakeNvml, tmp_path: Path
) -> None:
    engine.write(drivers_name_cards=True)
    notes = tmp_path / "devices.json"
    seen = []
    for cards in ((card(1), card(2)), (), (card(1), replace(card(2), uuid="GPU-3"))):
        drivers.tell(*cards)
        table = Devices(SystemClock(), notes=DeviceNotes(notes))
        await table.probe()
        seen.append(by_id(table).keys() - {"cpu"})
    assert seen == [{"GPU-1", "GPU-2"}, {"GPU-1", "GPU-2"}, {"GPU-1", "GPU-3"}]


@pytest.mark.behaviour("B-132")
@pytest.mark.parametrize("device_id", ["*", "GPU-1"])
async def test_the_first_listing_finds_what_the_operator_set(engine: Engine, device_id: str) -> None:
    table = Devices(SystemClock(), settings=DeviceSettings(environment={device_id: {"SOME_WORKAROUND": "1"}}))
    await table.probe()
    listings = [call for call in engine.calls() if "--check" not in call["arguments"]]
    assert [call["extra"] for call in listings] == ["1"]


@pytest.mark.behaviour("B-132")
async def test_processes_on_a_device_find_what_the_operator_set_for_it(engine: Engine, drivers: FakeNvml) -> None:
    table = Devices(SystemClock(), settings=DeviceSettings(environment={"GPU-1": {"SOME_WORKAROUND": "1"}}))
    await table.probe()
    assert table.environment(["GPU-1"])["SOME_WORKAROUND"] == "1"
    assert table.environment(["GPU-1"])["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    assert "SOME_WORKAROUND" not in table.environment(["GPU-2"])


def mig(number: int, gib: int) -> dict[str, Any]:
    """A slice of the card at 0000:01:00.0 as the engine lists it."""
    size = str(gib * GIB)
    return {**gpu(1), "id": f"MIG-{number}", "pool_id": f"MIG-{number}", "total_bytes": size, "free_bytes": size}


async def test_every_slice_of_a_card_is_a_device_with_its_own_memory_and_a_process_sees_it_alone(
    engine: Engine, drivers: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "LOOK_INTERVAL_S", 0.05)
    slices = tuple(Slice(uuid=f"MIG-{n}", total_bytes=n * 10 * GIB, free_bytes=n * 9 * GIB) for n in (1, 2))
    drivers.tell(replace(card(1), slices=slices), card(2))
    engine.write(devices=[CPU, mig(1, 10), mig(2, 20), gpu(2)])
    table = Devices(SystemClock())
    watching = asyncio.create_task(table.watch())
    try:
        await table.start()
        found = by_id(table)
        assert {name: device.state for name, device in found.items()} == dict.fromkeys(
            ("cpu", "MIG-1", "MIG-2", "GPU-2"), OK
        )
        cards = [found["MIG-1"], found["MIG-2"], found["GPU-2"]]
        assert [one.name for one in cards] == ["CUDA0", "CUDA1", "CUDA2"]
        assert [one.alone for one in cards] == [True, True, False]
        assert [one.total_bytes // GIB for one in cards] == [10, 20, 80]
        assert [one.free_bytes // GIB for one in cards] == [9, 18, 70]
        assert table.environment(["MIG-2"])["CUDA_VISIBLE_DEVICES"] == "MIG-2"
        limits = {call["arguments"][1]: call["limit"] for call in engine.calls() if "--check" in call["arguments"]}
        assert (limits["MIG-1"], limits["MIG-2"], limits["GPU-2"]) == ("MIG-1", "MIG-2", "GPU-2")
        drivers.tell(replace(card(1), slices=slices[:1]), card(2))  # an operator destroys a slice
        await until(lambda: by_id(table)["MIG-2"].state == LOST, what="the slice is gone")
        assert by_id(table)["MIG-1"].state == OK
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def test_a_child_of_the_drivers_that_has_ended_is_asked_nothing() -> None:
    """On the services' loop: a write to a closed pipe raises there."""

    async def ask_an_ended_child() -> None:
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", "", stdin=asyncio.subprocess.PIPE)
        assert child.stdin is not None
        asking = gpu_watch.Asking()
        with asking.of(child.stdin):
            await child.wait()
            await until(child.stdin.is_closing, what="the pipe is closed")
            asking.hurry()
            asking.ask()

    uvloop.run(ask_an_ended_child())

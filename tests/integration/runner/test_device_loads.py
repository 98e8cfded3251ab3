"""Loads on devices from outside: refused before a weight is read, cancelled, and peers that die."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf import json_format

from common.errors import PunaError
from common.spec import codecs
from common.spec.layout import Layout
from protos import cluster_pb2
from runner.core.layout.layout import resolve_layout
from runner.core.model.model_files import ModelFiles
from runner.engine.bindings.library import start_engine
from runner.engine.devices.devices import open_layout_devices
from runner.engine.llama.launch import try_header
from runner.engine.llama.model import load_model
from runner.measure import measure
from runner.serve.reservation import AllocationRefused, check_reservation
from tests.integration.runner.conftest import Zoo
from tests.integration.runner.devices import spread
from tests.integration.runner.processes import RunnerProcess, collect, greedy, started
from tests.limited_device import MIB, LimitedDevice, limited_device
from tests.waiting import wait_until

DEADLINE_S = 20.0
CLASSES = ("weights", "cache", "graph")


def as_json(layout: Layout) -> str:
    return json_format.MessageToJson(codecs.LAYOUT.to_proto(layout), preserving_proto_field_name=True)


def empty(*devices: LimitedDevice) -> None:
    wait_until(lambda: all(device.used_bytes() == 0 for device in devices), deadline_s=10, what="devices are empty")


def sizes_of(path: Path) -> cluster_pb2.DeviceMemory:
    """Return the memory of the model on one device that holds all of it."""
    with limited_device(mib=256) as roomy:
        (size,) = measure(ModelFiles(model=path), spread((roomy,), (9,))).devices
    return size


def cap_mib(size: cluster_pb2.DeviceMemory, lacking: str) -> float:
    """A limit at which half of one class does not fit any more."""
    parts = {"weights": size.weights_bytes, "cache": size.cache_bytes, "graph": size.graph_bytes}
    before = sum(parts[name] for name in CLASSES[: CLASSES.index(lacking)])
    return (before + parts[lacking] / 2) / MIB


def test_a_model_is_counted_on_a_device_without_a_free_byte(zoo: Zoo) -> None:
    files = ModelFiles(model=zoo("dense"))
    with limited_device(mib=256) as device:
        layout = spread((device,), (9,))
        expected = measure(files, layout).devices
        device.take()
        assert measure(files, layout).devices == expected


@pytest.mark.behaviour("B-61", "B-67", "B-68")
@pytest.mark.parametrize("lacking", CLASSES)
def test_the_check_finds_what_does_not_fit_and_leaves_nothing_behind(zoo: Zoo, lacking: str) -> None:
    files = ModelFiles(model=zoo("dense"))
    size = sizes_of(files.model)
    with limited_device(mib=cap_mib(size, lacking)) as device:
        with pytest.raises(AllocationRefused) as refused:
            check_reservation(files, spread((device,), (9,)), try_header(files))
        empty(device)
        wanted = getattr(size, f"{lacking}_bytes")
        assert device.refusals() == [wanted]
        assert f"device gpu-a refused {wanted} bytes for {lacking}" in refused.value.error.message
        assert refused.value.error.reason == "device_memory_exhausted"
        assert refused.value.attempted.origin == cluster_pb2.MEMORY_ORIGIN_ATTEMPTED
        assert refused.value.attempted.devices[0] == size


def test_the_check_passes_what_fits_and_uses_what_was_measured_before(zoo: Zoo) -> None:
    files = ModelFiles(model=zoo("dense"))
    with limited_device(mib=64) as device:
        layout, header = spread((device,), (9,)), try_header(files)
        check_reservation(files, layout, header)
        planned = measure(files, layout)
        check_reservation(files, layout, header, planned=planned)
        planned.devices[0].cache_bytes = 1 << 40
        with pytest.raises(AllocationRefused):
            check_reservation(files, layout, header, planned=planned)
        # An estimate is no measurement.
        planned.origin = cluster_pb2.MEMORY_ORIGIN_ESTIMATED
        check_reservation(files, layout, header, planned=planned)
        empty(device)


@pytest.mark.behaviour("B-61", "B-68")
@pytest.mark.behaviour("B-152")
@pytest.mark.parametrize("check", ["true", "false"])
async def test_a_runner_whose_device_is_too_small_says_what_it_tried_and_ends(
    zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: str
) -> None:
    monkeypatch.setenv("PUNA_RESERVE_CHECK", check)
    size = sizes_of(zoo("dense"))
    with limited_device(mib=cap_mib(size, "cache")) as device:
        async with started(zoo("dense"), tmp_path, layout=as_json(spread((device,), (9,)))) as runner:
            status = await runner.ready()
            assert status.state == cluster_pb2.RUNNER_STATE_ERROR
            assert status.error.reason == "device_memory_exhausted"
            assert "device gpu-a refused" in status.error.message
            assert "for cache" in status.error.message
            assert status.error.attempted.origin == cluster_pb2.MEMORY_ORIGIN_ATTEMPTED
            assert status.error.attempted.devices[0] == size
            # Only the check knows before the weights are read.
            assert (status.load_fraction == 0) is (check == "true")
            assert await runner.exit_status() == 3
        empty(device)


@pytest.mark.behaviour("B-67")
@pytest.mark.parametrize("stop_after", [0.0, 0.3])
def test_a_load_that_is_stopped_gives_the_device_back(zoo: Zoo, stop_after: float) -> None:
    start_engine()
    with limited_device(mib=64) as device:
        layout = resolve_layout(spread((device,), (9,)), trained_context_tokens=0, cpu_threads=1).layout
        held: list[int] = []

        def stop(fraction: float) -> bool:
            held.append(device.used_bytes())
            return fraction < stop_after

        with pytest.raises(PunaError):
            load_model(zoo("dense"), layout, device_pointers=open_layout_devices(layout), on_progress=stop)
        # Buffers are there before the first byte is read.
        assert held[0] > MIB
        assert len(held) == 1 if stop_after == 0.0 else len(held) > 1
        empty(device)


async def asked(runner: RunnerProcess, going: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, going, deadline_s=DEADLINE_S, what="the request runs")


@pytest.mark.behaviour("B-10")
async def test_a_runner_whose_peer_dies_ends_at_once_and_says_why(zoo: Zoo, tmp_path: Path) -> None:
    with limited_device(mib=64) as near, limited_device(mib=64) as far:
        async with started(zoo("dense"), tmp_path, layout=as_json(spread((far, near), (5, 4)))) as runner:
            status = await runner.ready()
            assert status.state == cluster_pb2.RUNNER_STATE_READY
            (report,) = [status.memory]
            assert [memory.device_id for memory in report.devices] == ["gpu-a", "gpu-b"]
            running = asyncio.create_task(collect(runner.client, greedy("The weather", max_tokens=100_000)))
            await runner.status_where(slots_busy=1)
            far.kill()
            async with asyncio.timeout(DEADLINE_S):
                assert await runner.exit_status() != 0
            with pytest.raises(PunaError):
                await running
            assert any(line.startswith("engine error: ") for line in runner.log.read_text().splitlines())


@pytest.mark.behaviour("B-82")
async def test_a_runner_that_reads_ahead_serves_as_any_other(
    zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PUNA_PREFETCH", "on")
    async with started(zoo("dense"), tmp_path) as runner:
        assert (await runner.ready()).state == cluster_pb2.RUNNER_STATE_READY
        assert (await collect(runner.client, greedy("The weather"))).text


async def test_a_runner_whose_device_is_not_lent_says_so_and_ends(zoo: Zoo, tmp_path: Path) -> None:
    layout = {"devices": [{"device_id": "gone", "layer_count": 9, "rpc_address": "127.0.0.1:1"}]}
    async with started(zoo("dense"), tmp_path, layout=json.dumps(layout)) as runner:
        status = await runner.ready()
        assert status.state == cluster_pb2.RUNNER_STATE_ERROR
        assert status.error.reason == "model_unavailable"
        assert "127.0.0.1:1" in status.error.message
        assert await runner.exit_status() == 3

"""Runners from start to stop, with the real engine."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from common.errors import BadModelFile, DeviceMemoryExhausted, InvalidRequest, ModelNotFound, PlacementMismatch
from protos import cluster_pb2, host_pb2
from tests.faults.faults import broken, engine_blocked
from tests.integration.host.node import (
    SMALL,
    Inventory,
    Node,
    environment_of,
    is_alive,
    pids_below,
    runners_of,
    running_node,
)
from tests.waiting import Stopwatch, until
from tools.model_zoo import build, damage

pytestmark = pytest.mark.asyncio(loop_scope="module")

READY = cluster_pb2.RUNNER_STATE_READY
ERROR = cluster_pb2.RUNNER_STATE_ERROR


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_node(tmp_path_factory: pytest.TempPathFactory, models_directory: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path_factory.mktemp("n"), models_directory) as node:
        yield node


@pytest_asyncio.fixture(loop_scope="module")
async def node(shared_node: Node) -> AsyncIterator[Node]:
    """A node without runners."""
    yield shared_node
    await shared_node.clear()


def state_of(inventory: Inventory, record: cluster_pb2.RunnerRecord) -> cluster_pb2.RunnerStatus | None:
    """Return the status of a runner that the inventory shows."""
    found = (one for one in runners_of(inventory) if one.placement.placement_id == record.placement.placement_id)
    return next((one.status for one in found), None)


def is_in(record: cluster_pb2.RunnerRecord, state: int) -> Callable[[Inventory], bool]:
    """Return a condition that an inventory meets once the runner has the state."""
    return lambda inventory: (status := state_of(inventory, record)) is not None and status.state == state


@pytest.mark.behaviour("B-80", "B-81")
async def test_a_start_streams_rising_progress_until_ready(node: Node) -> None:
    request = await node.start_request()
    records = [record async for record in node.client.start(node.address, request)]
    fractions = [record.status.load_fraction for record in records]
    states = [record.status.state for record in records]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert states == sorted(
        states, key=[cluster_pb2.RUNNER_STATE_LAUNCHED, cluster_pb2.RUNNER_STATE_LOADING, READY].index
    )
    assert records[-1].address.startswith("unix:")
    assert records[-1].placement.incarnation


async def test_a_running_runner_is_in_the_inventory_and_a_stopped_one_is_gone_without_a_trace(node: Node) -> None:
    request = await node.start_request()
    record = await node.run(request)
    found = await node.inventory(lambda inventory: any(r.status.state == READY for r in runners_of(inventory)))
    assert runners_of(found)[0].placement == record.placement
    await node.stop(request)
    assert not is_alive(record.pid)
    assert list(node.runner_files.iterdir()) == []
    await node.inventory(lambda inventory: not runners_of(inventory))


@pytest.mark.behaviour("B-86")
async def test_two_starts_of_one_placement_make_one_process(node: Node) -> None:
    request = await node.start_request()
    first, second = await asyncio.gather(node.run(request), node.run(request))
    assert first.status.state == second.status.state == READY
    assert first.pid == second.pid
    assert pids_below(node.home) == [first.pid]


@pytest.mark.behaviour("B-86")
async def test_another_layout_under_the_same_generation_is_refused_and_a_new_generation_replaces(node: Node) -> None:
    request = await node.start_request()
    first = await node.run(request)
    request.layout.slots = 3
    with pytest.raises(PlacementMismatch):
        await node.run(request)
    request.placement.generation = 2
    second = await node.run(request)
    assert second.status.state == READY
    assert second.layout.slots == 3
    assert not is_alive(first.pid)
    request.placement.generation = 1
    with pytest.raises(PlacementMismatch):
        await node.stop(request)
    assert is_alive(second.pid)
    request.placement.generation = 2


@pytest.mark.behaviour("B-84")
async def test_a_caller_that_leaves_does_not_end_the_load(node: Node) -> None:
    request = await node.start_request()
    stream = node.client.start(node.address, request)
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]  # it is a generator
    await node.inventory(lambda inventory: any(r.status.state == READY for r in runners_of(inventory)))


async def test_a_killed_runner_is_reported_with_its_signal_within_half_a_second(node: Node) -> None:
    record = await node.run(await node.start_request())
    waiting = asyncio.create_task(node.inventory(is_in(record, ERROR)))
    await node.inventory(is_in(record, READY))
    watch = Stopwatch()
    os.kill(record.pid, signal.SIGKILL)
    status = state_of(await waiting, record)
    took_s = watch.wall_s
    assert status is not None
    error = status.error
    assert error.exit_code == -signal.SIGKILL
    assert error.reason == "runner_lost"
    assert "SIGKILL" in error.message
    assert list(node.runner_files.iterdir()) == []
    watch.assert_within(0.5, "the runner is reported", took_s=took_s)


async def test_a_runner_killed_between_its_load_and_the_first_report_that_its_host_reads_has_loaded(node: Node) -> None:
    status = await _killed_behind_its_load(node)
    while not status.HasField("error"):  # its host had read the report before it was stopped
        status = await _killed_behind_its_load(node)
    assert status.error.message == "the runner was ended by signal 9 (SIGKILL)"
    assert status.load_fraction == 1.0


async def _killed_behind_its_load(node: Node) -> cluster_pb2.RunnerStatus:
    request = await node.start_request()
    log = node.home / "logs" / f"runner-{request.placement.placement_id}-1.log"
    running = asyncio.create_task(node.run(request))
    await until(log.exists, what="the runner starts")
    host = node.host.process
    host.send_signal(signal.SIGSTOP)
    try:
        await until(lambda: '"model.loaded"' in log.read_text(), what="it has loaded")
        (pid,) = pids_below(node.home)
        os.kill(pid, signal.SIGKILL)
    finally:
        host.send_signal(signal.SIGCONT)
    return (await running).status


async def test_an_idle_runner_that_hangs_as_a_whole_or_in_its_engine_thread_is_killed(node: Node) -> None:
    stopped, blocked = [await node.run(await node.start_request()) for _ in range(2)]
    with broken(engine_blocked(blocked.pid)):
        os.kill(stopped.pid, signal.SIGSTOP)
        watch = Stopwatch()
        await node.inventory(is_in(stopped, cluster_pb2.RUNNER_STATE_NOT_RESPONDING))
        shown_s = watch.wall_s
        found = [state_of(await node.inventory(is_in(one, ERROR)), one) for one in (stopped, blocked)]
        killed_s = watch.wall_s
        await until(lambda: not is_alive(stopped.pid) and not is_alive(blocked.pid), what="both are killed")
    said = [status.error.message for status in found if status is not None]
    assert "did not answer" in said[0]
    assert "the runner's engine made no progress for 10" in said[1]
    watch.assert_within(6, "the stopped one is shown", took_s=shown_s)
    watch.assert_within(15, "both are killed", took_s=killed_s)


async def test_unknown_models_and_malformed_commands_start_nothing(node: Node) -> None:
    request = await node.start_request(model_digest="0" * 64)
    with pytest.raises(ModelNotFound):
        await node.run(request)
    request = await node.start_request(placement=cluster_pb2.PlacementRef(placement_id="../x", generation=1))
    with pytest.raises(InvalidRequest):
        await node.run(request)
    request = await node.start_request()
    request.ClearField("fence")
    with pytest.raises(InvalidRequest, match="fence"):
        await node.run(request)
    assert pids_below(node.home) == []


async def test_a_plan_that_needs_more_than_is_free_is_refused_before_anything_starts(node: Node) -> None:
    planned = cluster_pb2.MemoryReport(host=cluster_pb2.DeviceMemory(weights_bytes=2**50))
    with pytest.raises(DeviceMemoryExhausted, match="cpu"):
        await node.run(await node.start_request(planned=planned))
    gone = cluster_pb2.MemoryReport(devices=[cluster_pb2.DeviceMemory(device_id="GPU-1", cache_bytes=1)])
    with pytest.raises(DeviceMemoryExhausted, match="GPU-1"):
        await node.run(await node.start_request(planned=gone))
    assert pids_below(node.home) == []


async def test_stopping_what_does_not_run_is_a_success(node: Node) -> None:
    await node.stop(await node.start_request())


@pytest.mark.behaviour("B-83")
async def test_a_damaged_file_is_known_by_name_with_the_reason_and_never_started(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    good = build("dense", models)
    cut = damage(good, "cut-in-data")
    foreign = damage(good, "unknown-architecture")
    async with running_node(tmp_path, models) as node:
        model = await node.model(f"{cut.stem}:latest")
        assert f"{cut}: truncated" in model.error
        assert not model.HasField("description")
        with pytest.raises(BadModelFile, match="truncated"):
            await node.run(await node.start_request(model.name))
        # The header is sound, so that only the engine can refuse it: the load fails, and says why.
        record = await node.run(await node.start_request(f"{foreign.stem}:latest"))
        assert record.status.state == ERROR
        assert record.status.error.reason == "bad_model_file"
        assert "architecture" in record.status.error.message


@pytest.mark.behaviour("B-64", "B-65", "B-66")
async def test_measured_memory_is_what_the_loaded_runner_reports(node: Node) -> None:
    request = await node.start_request()
    measured = await node.client.measure(node.address, model_digest=request.model_digest, layout=SMALL)
    record = await node.run(request)
    real = record.status.memory
    assert (measured.origin, real.origin) == (
        cluster_pb2.MEMORY_ORIGIN_MEASURED,
        cluster_pb2.MEMORY_ORIGIN_ALLOCATED,
    )
    for name in ("weights_bytes", "cache_bytes", "graph_bytes"):
        assert abs(getattr(measured.host, name) - getattr(real.host, name)) <= 4 * 1024 * 1024
    assert measured.host.cache_bytes == real.host.cache_bytes > 0


async def test_a_measurement_is_remembered(node: Node) -> None:
    digest = (await node.model("dense:latest")).digest
    layout = cluster_pb2.Layout()
    layout.CopyFrom(SMALL)
    layout.context_tokens = 256  # as in no other test
    before = await measures(node)
    first = await node.client.measure(node.address, model_digest=digest, layout=layout)
    layout.threads = 7  # changes no byte
    assert await node.client.measure(node.address, model_digest=digest, layout=layout) == first
    after = await measures(node)
    assert {source: after[source] - before.get(source, 0) for source in after} == {"engine": 1, "cache": 1}


async def measures(node: Node) -> dict[str, float]:
    """Return how many measurements came from each source."""
    async with httpx.AsyncClient(timeout=60) as client:
        page = (await client.get(f"http://{(await node.host.event('host.ready'))['metrics_address']}/metrics")).text
    return {source: float(count) for source, count in re.findall(r'measures_total{source="(.+)"} (.+)', page)}


async def test_an_impossible_layout_is_refused_by_measure(node: Node) -> None:
    digest = (await node.model("dense:latest")).digest
    layout = cluster_pb2.Layout(devices=[cluster_pb2.DeviceLayers(device_id="GPU-none", layer_count=1)])
    with pytest.raises(InvalidRequest, match="GPU-none"):
        await node.client.measure(node.address, model_digest=digest, layout=layout)


@pytest.mark.behaviour("B-132")
async def test_a_runner_sees_nothing_of_the_hosts_secrets(tmp_path: Path, models_directory: Path) -> None:
    async with running_node(tmp_path, models_directory, SOME_TOKEN="secret") as node:
        record = await node.run(await node.start_request())
        names = environment_of(record.pid)
        assert "SOME_TOKEN" not in names
        assert {"PATH", "CUDA_DEVICE_ORDER", "GGML_NO_BACKTRACE"} <= names


async def test_a_stop_with_drain_is_over_once_the_runner_is_idle(node: Node) -> None:
    request = await node.start_request()
    record = await node.run(request)
    watch = Stopwatch()
    await node.stop(request, drain_ms=20_000)
    took_s = watch.wall_s
    assert not is_alive(record.pid)
    watch.assert_within(5, "the stop", took_s=took_s)


async def test_stop_ends_a_runner_that_still_loads(tmp_path: Path, models_directory: Path) -> None:
    long_load = {"PUNA_ENGINE": "fake", "PUNA_ENGINE_OPTIONS": '{"load_s": 600}'}
    async with running_node(tmp_path, models_directory, **long_load) as node:
        request = await node.start_request()
        stream = node.client.start(node.address, request)
        await anext(stream)
        await node.client.stop(node.address, host_pb2.StopRequest(fence=node.fence, placement=request.placement))
        last = [record async for record in stream][-1]
        assert last.status.state == ERROR
        assert last.status.error.reason == "shutting_down"
        assert pids_below(node.home) == []

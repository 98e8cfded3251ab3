"""Runners whose engine aborts or blocks: real processes with a fake engine on the cards of a fake build and driver."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from common.errors import ModelUnavailable
from protos import cluster_pb2, host_pb2, runner_pb2
from runner.client import RunnerClient
from tests.fake_nvml import FakeNvml
from tests.integration.host.fake_build import CPU, EXCLUDED, OK, card, gpu
from tests.integration.host.fake_host import SCENARIO
from tests.integration.host.node import SMALL, Inventory, Node, is_alive, runners_of, running_node
from tests.integration.runner.processes import collect, greedy
from tests.waiting import Stopwatch, until
from tools.model_zoo import build

READY, ERROR = cluster_pb2.RUNNER_STATE_READY, cluster_pb2.RUNNER_STATE_ERROR
BAD_SEED = 666
Planned = cluster_pb2.MemoryReport

pytestmark = pytest.mark.behaviour("B-130")


@asynccontextmanager
async def cards_of(directory: Path, models: Path, count: int, **engine: Any) -> AsyncIterator[Node]:
    """A node with so many cards that pass every test, and runners whose engine has these options."""
    library = FakeNvml(directory)
    library.tell(*(card(number) for number in range(1, count + 1)))
    scenario = directory / "scenario.json"
    devices = [CPU, *(gpu(number) for number in range(1, count + 1))]
    scenario.write_text(json.dumps({"backends": ["CUDA", "CPU"], "devices": devices}))
    environment = {SCENARIO: str(scenario), "PUNA_ENGINE": "fake", "PUNA_ENGINE_OPTIONS": json.dumps(engine)}
    async with running_node(directory, models, **library.environment, **environment) as node:
        await node.inventory(lambda inventory: states(inventory) == {f"GPU-{n}": OK for n in range(1, count + 1)})
        yield node


def states(inventory: Inventory) -> dict[str, int]:
    return {one.id: one.state for node in inventory.nodes for one in node.devices if one.id.startswith("GPU-")}


async def start_on(
    node: Node, *device_ids: str, model: str = "dense:latest"
) -> tuple[host_pb2.StartRequest, cluster_pb2.RunnerRecord]:
    layout = cluster_pb2.Layout()
    layout.CopyFrom(SMALL)
    planned = Planned(devices=[cluster_pb2.DeviceMemory(device_id=one, cache_bytes=1 << 20) for one in device_ids])
    for device_id in device_ids:
        layout.devices.add(device_id=device_id, layer_count=1)
    request = await node.start_request(model, layout=layout, planned=planned)
    return request, await node.run(request)


def bad_request() -> runner_pb2.GenerateRequest:
    """The request that breaks the engine."""
    request = greedy("Hello", max_tokens=100_000)
    request.sampling.seed = BAD_SEED
    return request


async def ask_badly(record: cluster_pb2.RunnerRecord) -> None:
    """Break the engine; return once the runner is gone."""
    async with RunnerClient(record.address) as client:
        with pytest.raises(ModelUnavailable):
            await collect(client, bad_request())


async def error_of(node: Node, record: cluster_pb2.RunnerRecord) -> cluster_pb2.RunnerError:
    def ended(inventory: Inventory) -> cluster_pb2.RunnerRecord | None:
        found = (one for one in runners_of(inventory) if one.placement.placement_id == record.placement.placement_id)
        return next((one for one in found if one.status.state == ERROR), None)

    found = ended(await node.inventory(lambda inventory: ended(inventory) is not None))
    assert found is not None
    return found.status.error


OUT_OF_MEMORY = (
    "CUDA error: out of memory",
    "  current device: 1, in function alloc at ggml-cuda.cu:611",
    "  cuMemCreate(&handle, reserve_size, &prop, 0)",
)


async def test_an_engine_that_aborts_for_memory_names_the_device_and_no_device_is_blamed(
    tmp_path: Path, models_directory: Path
) -> None:
    async with cards_of(tmp_path, models_directory, 2, abort_on_seed=BAD_SEED, last_words=OUT_OF_MEMORY) as node:
        _, record = await start_on(node, "GPU-1", "GPU-2")
        await ask_badly(record)
        error = await error_of(node, record)
        assert error.reason == "device_memory_exhausted"
        assert "CUDA error: out of memory | current device: 1, in function alloc" in error.message
        assert error.attempted.origin == cluster_pb2.MEMORY_ORIGIN_ATTEMPTED
        assert [(one.device_id, one.cache_bytes) for one in error.attempted.devices] == [("GPU-2", 1 << 20)]
        assert "device.state" not in {event["event"] for event in node.host.events if event.get("state") != "ok"}


BROKEN = ("CUDA error: an illegal memory access was encountered", *OUT_OF_MEMORY[1:])


async def test_an_error_of_a_device_has_that_device_tested_and_no_other(tmp_path: Path, models_directory: Path) -> None:
    async with cards_of(tmp_path, models_directory, 2, abort_on_seed=BAD_SEED, last_words=BROKEN) as node:
        _, record = await start_on(node, "GPU-1", "GPU-2")
        await ask_badly(record)
        assert (await error_of(node, record)).reason == "device_lost"
        await node.inventory(lambda inventory: states(inventory)["GPU-2"] == OK)
        told = [event for event in node.host.events if event["event"] == "device.state"]
        since_error = [
            (event["device"], event["state"]) for event in told if "an error of the device" in event["reason"]
        ]
        assert since_error == [("GPU-2", "unchecked")]


async def test_two_engine_threads_that_block_are_replaced_and_the_stream_of_a_third_device_goes_on(
    tmp_path: Path, models_directory: Path
) -> None:
    async with cards_of(tmp_path, models_directory, 3, stall_on_seed=BAD_SEED, step_s=0.05) as node:
        started = [await start_on(node, f"GPU-{number}") for number in (1, 2, 3)]
        pids = [record.pid for _, record in started]
        clients = [RunnerClient(record.address) for _, record in started]
        tokens = 0

        async def stream() -> None:
            nonlocal tokens
            async for event in clients[2].generate(greedy("Hello", max_tokens=100_000)):
                tokens += len(event.tokens.tokens)

        streaming = asyncio.create_task(stream())
        watch = Stopwatch()
        lost = await asyncio.gather(*(collect(client, bad_request()) for client in clients[:2]), return_exceptions=True)
        assert [type(error) for error in lost] == [ModelUnavailable] * 2
        for request, record in started[:2]:
            error = await error_of(node, record)
            assert error.reason == "runner_lost"
            assert "the runner's engine made no progress for 10" in error.message
            request.placement.generation += 1
        await node.inventory(lambda inventory: set(states(inventory).values()) == {OK})
        replaced = [await node.run(request) for request, _ in started[:2]]
        replaced_s = watch.wall_s
        assert [record.status.state for record in replaced] == [READY] * 2
        before = tokens
        await until(lambda: tokens > before, what="the third stream goes on")
        assert not streaming.done()
        assert is_alive(pids[2])
        streaming.cancel()
        await asyncio.gather(streaming, *(client.close() for client in clients), return_exceptions=True)
        told = [event["reason"] for event in node.host.events if event.get("event") == "device.state"]
        assert sum("the engine on it made no progress" in reason for reason in told) == 2
        watch.assert_within(20, "both runners are replaced", took_s=replaced_s)


BROKEN_ALONE = (BROKEN[0], "current device: 0, in function f at g.cu:1")


async def break_on(node: Node, model: str) -> cluster_pb2.RunnerRecord:
    """End a runner of a model with an error of its device, which then passes its test or is excluded."""
    _, record = await start_on(node, "GPU-1", model=f"{model}:latest")
    await ask_badly(record)
    assert (await error_of(node, record)).reason == "device_lost"
    await node.inventory(lambda inventory: states(inventory)["GPU-1"] in (OK, EXCLUDED))
    return record


async def test_a_model_that_breaks_its_device_again_and_again_does_not_exclude_it(
    tmp_path: Path, models_directory: Path
) -> None:
    async with cards_of(tmp_path, models_directory, 1, abort_on_seed=BAD_SEED, last_words=BROKEN_ALONE) as node:
        for _ in range(4):
            await break_on(node, "dense")
        assert states(await node.inventory(lambda _: True)) == {"GPU-1": OK}


async def test_an_excluded_device_is_tested_again_when_a_request_is_to_blame(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    names = [build(name, models).stem for name in ("dense", "moe", "swa")]
    async with cards_of(tmp_path, models, 1, abort_on_seed=BAD_SEED, last_words=BROKEN_ALONE) as node:
        records = [await break_on(node, name) for name in names]
        assert states(await node.inventory(lambda _: True)) == {"GPU-1": EXCLUDED}
        placement = cluster_pb2.PlacementRef(placement_id=records[0].placement.placement_id, generation=1)
        await node.client.excuse_crash(node.address, host_pb2.ExcuseCrashRequest(fence=node.fence, placement=placement))
        await node.inventory(lambda inventory: states(inventory) == {"GPU-1": OK})

"""Runners that see, as processes, and on lent devices with little memory."""

import re
from pathlib import Path

import grpc
import numpy as np
import pytest

from common.errors import DeviceMemoryExhausted, InvalidRequest, PunaError
from protos import cluster_pb2, runner_pb2
from runner.core.model.model_files import ModelFiles
from runner.measure import measure
from tests.integration.runner.devices import loaded, spread
from tests.integration.runner.pictures import image_file, picture
from tests.integration.runner.processes import RunnerProcess, collect, greedy, started
from tests.limited_device import MIB, limited_device
from tools.model_zoo import build, build_pair

LAYOUT = '{"slots": 2, "contextTokens": 1024, "threads": 1}'


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of models and their projectors."""
    return tmp_path_factory.mktemp("pairs")


def about(image: bytes, text: str = "What is it?", **fields: int) -> runner_pb2.GenerateRequest:
    request = greedy(text, **fields)
    request.prompt.insert(0, runner_pb2.Segment(media=runner_pb2.Media(data=image)))
    request.prompt.insert(0, runner_pb2.Segment(literal="Look: "))
    return request


def peak_bytes(runner: RunnerProcess) -> int:
    status = Path(f"/proc/{runner.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.behaviour("B-62", "B-73")
@pytest.mark.parametrize("name", ["vision", "vision_swa", "mrope"])
async def test_the_largest_image_needs_no_more_memory_than_the_load_took(
    pairs: Path, tmp_path: Path, name: str
) -> None:
    model, projector = build_pair(name, pairs)
    flat = np.full((2048, 2048, 3), 77, np.uint8)
    async with started(model, tmp_path, "--projector", str(projector), layout=LAYOUT) as runner:
        status = await runner.ready()
        assert status.state == cluster_pb2.RUNNER_STATE_READY
        assert status.memory.host.projector_bytes > 0
        (ready,) = [event for event in runner.events() if event["event"] == "projector.ready"]
        side = ready["width"] if name == "mrope" else 2048  # larger ones do not fit into the context
        # The text model's buffers were reserved at load too, but the kernel gives pages when they are first written.
        await collect(runner.client, greedy("word " * 500, max_tokens=2))
        after_load = peak_bytes(runner)
        answer = await collect(runner.client, about(image_file(flat[:side, :side]), max_tokens=2))
        assert len(answer.tokens) == 2
        # The rest of the process grew a little since the load. An image that had not been reserved for takes four times
        # as much: its pixels, two copies of them on the way to the projector, and the projector's graph.
        assert peak_bytes(runner) - after_load < 12 * MIB


async def test_images_are_counted_read_and_refused_over_grpc(pairs: Path, tmp_path: Path) -> None:
    model, projector = build_pair("mrope", pairs)
    file = image_file(picture(1))
    async with started(model, tmp_path, "--projector", str(projector), layout=LAYOUT) as runner:
        await runner.ready()
        request = about(file, max_tokens=3)
        answer = await collect(runner.client, request)
        counted = await runner.client.tokenize(runner_pb2.TokenizeRequest(segments=request.prompt, add_bos=True))
        (final,) = answer.finals
        assert counted.media_rows == 60
        assert final.prompt_tokens == len(counted.ids) + counted.media_rows
        again = await collect(runner.client, request)
        assert again.finals[0].cached_tokens == final.prompt_tokens - 1
        assert again.text == answer.text

        for bad, said in ((b"no image", "none of PNG"), (file[:-500], "cannot be decoded"), (b"", "empty")):
            with pytest.raises((PunaError, grpc.aio.AioRpcError)) as caught:
                await collect(runner.client, about(bad, max_tokens=1))
            assert said in str(caught.value)
        many = about(file, max_tokens=1)
        many.prompt.extend([many.prompt[1]] * 8)
        with pytest.raises((PunaError, grpc.aio.AioRpcError), match="8 images"):
            await collect(runner.client, many)


@pytest.mark.behaviour("B-104")
async def test_a_model_without_eyes_refuses_images_and_reads_markers_as_text(pairs: Path, tmp_path: Path) -> None:
    async with started(build("dense", pairs), tmp_path) as runner:
        await runner.ready()
        with pytest.raises((PunaError, grpc.aio.AioRpcError), match="does not support images") as caught:
            await collect(runner.client, about(image_file(picture(1)), max_tokens=1))
        if isinstance(caught.value, grpc.aio.AioRpcError):
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        marker = runner_pb2.Segment(literal="[img-0] hi")
        counted = await runner.client.tokenize(runner_pb2.TokenizeRequest(segments=[marker], add_bos=True))
        request = greedy("", max_tokens=2)
        del request.prompt[:]
        request.prompt.append(marker)
        answer = await collect(runner.client, request)
        assert answer.finals[0].prompt_tokens == len(counted.ids)
        assert counted.media_rows == 0


@pytest.mark.behaviour("B-73", "B-68")
def test_a_device_that_lacks_only_the_projector_s_room_refuses_the_load(pairs: Path) -> None:
    model, projector = build_pair("vision", pairs)
    with limited_device(mib=64) as device:
        layout = spread((device,), (5,))
        report = measure(ModelFiles(model=model, projector=projector), layout)
        (counted,) = report.devices
        text_bytes = counted.weights_bytes + counted.cache_bytes + counted.graph_bytes
        assert counted.projector_bytes > 0
        with loaded(model, layout, projector=projector) as driver:
            assert driver.model.memory is not None
            ((_, held),) = driver.model.memory.devices
            assert held.projector_bytes == counted.projector_bytes
    with limited_device(mib=64) as device:
        device.take(leave_bytes=text_bytes + counted.projector_bytes // 2)
        layout = spread((device,), (5,))
        with pytest.raises((DeviceMemoryExhausted, InvalidRequest)), loaded(model, layout, projector=projector):
            pass
        with loaded(model, layout) as driver:
            assert driver.model.memory is not None

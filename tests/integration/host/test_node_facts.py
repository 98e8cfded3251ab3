"""Facts that a host reports about its node as they change."""

import asyncio
import os
import signal
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from common.errors import ModelNotFound
from protos import cluster_pb2
from runner.core.devices.gpu_memory import GpuMemory
from runner.host.devices import gpu_watch
from runner.host.files.inspection import INSPECTION_VERSION
from runner.host.models.model_files import NodeModels
from runner.host.processes import children
from tests.integration.host.node import Inventory, Node, is_alive, running_node
from tests.waiting import Stopwatch
from tools.model_zoo import build, build_pair

MIB = 1024 * 1024
HOG_MIB = 512


def cpu_of(inventory: Inventory) -> cluster_pb2.Device:
    return next(device for node in inventory.nodes for device in node.devices if device.id == "cpu")


@pytest.mark.behaviour("B-131")
async def test_memory_that_another_process_takes_is_missing_within_two_seconds(node: Node) -> None:
    """Memory that a third process frees at the same moment would hide it; that does not happen three times."""
    for _ in range(3):
        if await _is_missing(node, HOG_MIB * MIB):
            return
    pytest.fail("nothing was missing")


async def _is_missing(node: Node, taken_bytes: int) -> bool:
    """Return True if the memory that a process takes is soon no longer free."""
    before = cpu_of(await node.inventory(lambda inventory: bool(inventory.nodes))).free_bytes
    program = f"import sys; hog = b'x' * {taken_bytes}; print('there', flush=True); sys.stdin.read()"
    hog = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert hog.stdout is not None
    assert hog.stdin is not None
    await hog.stdout.readline()
    watch = Stopwatch()
    enough = before - taken_bytes // 2
    found = cpu_of(await node.inventory(lambda inventory: cpu_of(inventory).free_bytes < enough or watch.is_past(2.5)))
    hog.stdin.close()
    assert await hog.wait() == 0
    assert (found.trust, found.state) == (cluster_pb2.TRUST_MEASURED, cluster_pb2.DEVICE_STATE_OK)
    assert found.free_age_ms < 2000
    return found.free_bytes < enough and not watch.is_past(2.5)


async def test_a_file_that_is_added_or_removed_is_noticed(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    async with running_node(tmp_path, models) as node:
        await node.inventory(lambda inventory: bool(inventory.nodes) and not inventory.nodes[0].models)
        path = build("tied", models)
        model = await node.model("tied:latest")
        assert model.size_bytes == path.stat().st_size
        assert model.description.capabilities[0] == "completion"
        assert len(model.digest) == 64
        path.unlink()
        await node.inventory(lambda inventory: not inventory.nodes[0].models)


async def test_a_known_file_is_neither_read_nor_inspected_again(tmp_path: Path, models_directory: Path) -> None:
    async with running_node(tmp_path, models_directory) as node:
        model = await node.model("dense:latest")
        cached = node.home / "cache" / "descriptions" / f"{model.digest}-v{INSPECTION_VERSION}.json"
        await node.host.end()
        cached.write_text(cached.read_text().replace('"dense"', '"from the cache"'))
        await node.restart_host()
        assert (await node.model("dense:latest")).description.title == "from the cache"


async def test_a_cancelled_child_does_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid_file = tmp_path / "pid"
    os.mkfifo(pid_file)
    program = (
        "import os, pathlib, sys, threading;"
        "pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); threading.Event().wait()"
    )
    monkeypatch.setattr(children, "runner_command", lambda *_: [sys.executable, "-c", program, str(pid_file)])
    running = asyncio.create_task(children.run_child("probe", [], timeout_s=60))
    pid = int(await asyncio.to_thread(pid_file.read_text))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not is_alive(pid)


async def test_a_child_that_prints_without_end_is_ended_at_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid_file = tmp_path / "pid"
    program = (
        "import os, pathlib, sys\n"
        "pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))\n"
        "while True: print('x' * 10000)"
    )
    monkeypatch.setattr(children, "runner_command", lambda *_: [sys.executable, "-c", program, str(pid_file)])
    monkeypatch.setattr(children, "OUTPUT_BYTES_MAX", MIB)
    result = await children.run_child("inspect", [], timeout_s=30)
    assert result.failure() == f"it printed more than {MIB} bytes and was ended"
    assert (result.exit_code, result.output, result.left) == (-signal.SIGKILL, b"", None)
    assert not is_alive(int(pid_file.read_text()))


async def test_of_a_childs_errors_only_the_end_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import sys; sys.stdout.write('done'); sys.stderr.write('x' * 10_000_000 + '!'); sys.exit(3)"
    monkeypatch.setattr(children, "runner_command", lambda *_: [sys.executable, "-c", program])
    result = await children.run_child("inspect", [], timeout_s=30)
    assert (result.exit_code, result.output) == (3, b"done")
    assert len(result.last_line) == children.STDERR_BYTES_KEPT
    assert result.last_line.endswith("x!")


async def test_a_gpu_reader_that_falls_silent_is_killed_and_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"
    program = (
        "import os, pathlib, sys, threading;"
        "file = pathlib.Path(sys.argv[1]).open('a'); file.write(f'{os.getpid()}\\n'); file.close();"
        """print('[{"pci_id":"p","uuid":"u","total_bytes":2,"free_bytes":1,"source":"nvml"}]', flush=True);"""
        "threading.Event().wait()"
    )
    monkeypatch.setattr(children, "runner_command", lambda *_: [sys.executable, "-c", program, str(pids)])
    monkeypatch.setattr(gpu_watch, "LINE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(gpu_watch, "RESTART_S_MIN", 0.05)
    seen: list[list[GpuMemory]] = []
    twice = asyncio.Event()

    def take(cards: list[GpuMemory]) -> None:
        seen.append(cards)
        if len(seen) == 2:
            twice.set()

    watching = asyncio.create_task(gpu_watch.watch_gpus(take, on_silence=lambda: None))
    await asyncio.wait_for(twice.wait(), 60)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert seen[0] == [GpuMemory(pci_id="p", uuid="u", total_bytes=2, free_bytes=1, source="nvml")]
    started = [int(line) for line in pids.read_text().split()]
    assert len(started) == 2
    assert not any(is_alive(pid) for pid in started)


async def test_a_node_without_cards_asks_no_driver_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "runner_command", lambda *_: [sys.executable, "-c", "print('[]')"])
    seen: list[list[GpuMemory]] = []
    await asyncio.wait_for(gpu_watch.watch_gpus(seen.append, on_silence=lambda: None), 60)
    assert seen == [[]]


async def test_a_look_at_a_file_that_failed_is_repeated_and_a_verdict_is_not(
    tmp_path: Path, models_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = NodeModels(models_directory, tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr(children, "runner_command", lambda *_: [sys.executable, "-c", "import os; os.abort()"])
        await files.scan()
    (model,) = files.models()
    assert "the inspection failed: signal 6" in model.error
    files._forget_failures()
    await files.scan()
    (model,) = files.models()
    assert not model.error
    known = files.models()[0].digest
    files._forget_failures()
    assert [model.digest for model in files.models()] == [known]


async def test_a_projector_beside_a_model_lets_it_see_and_is_no_model_itself(tmp_path: Path) -> None:
    directory = tmp_path / "models"
    model, projector = build_pair("vision", directory)
    build("dense", directory)
    files = NodeModels(directory, tmp_path)

    def rename(name: str) -> Path:
        return projector.rename(directory / name)

    await files.scan()
    assert [found.name for found in files.models()] == ["dense:latest", "vision:latest"]
    assert not any(found.projector_digest for found in files.models())
    for name in ("vision.mmproj.gguf", "mmproj-vision.gguf"):
        projector = rename(name)
        await files.scan()
        dense, sees = files.models()
        assert "vision" in sees.description.capabilities
        assert "vision" not in dense.description.capabilities
        assert sees.projector_digest == sha256(projector.read_bytes()).hexdigest()
        assert sees.projector_size_bytes == projector.stat().st_size
        layout = cluster_pb2.Layout(projector_digest=sees.projector_digest)
        loaded = files.files_of(sees.digest, layout)
        assert (loaded.model, loaded.projector) == (model, projector)
        with pytest.raises(ModelNotFound):
            files.find(sees.projector_digest)
    projector.unlink()
    await files.scan()
    assert not any("vision" in found.description.capabilities for found in files.models())

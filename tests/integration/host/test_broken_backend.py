"""A backend whose drivers end or hang every process that asks it: the others are used, and nobody meets it.

The engine is the real one. A library of ours takes the place of one of its backends, and does what Vulkan's does with
a broken driver: it fails when it is registered, unless it is told to stay away.
"""

import asyncio
import subprocess
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.clock import SystemClock
from common.grpc.client import open_channel
from protos import cluster_pb2
from runner.core.devices.device_health import RETRY_S_MIN
from runner.core.devices.device_settings import DeviceSettings
from runner.host.devices.device_notes import DeviceNotes
from runner.host.devices.devices import Devices
from runner.host.devices.hot_plug import HotPlug
from runner.host.processes.children import run_child
from tests.integration.host.fake_build import CPU, EXCLUDED, OK, Engine, by_id, gpu
from tests.integration.host.hung_cards import hurry
from tests.integration.host.node import Inventory, running_node
from tests.known_speed import note_ram_speed
from tests.waiting import until

pytestmark = pytest.mark.behaviour("B-130")

PATIENT = DeviceSettings(probe_timeout_s=300.0)  # several engines start at once, on whatever machine
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
LAST_WORDS = "the driver met something that it did not expect"

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct registry {
    int api_version;
    const char *(*name)(struct registry *);
    size_t (*count)(struct registry *);
    void *(*device)(struct registry *, size_t);
    void *(*procedure)(struct registry *, const char *);
    void *context;
};

static const char *name(struct registry *self) { (void)self; return "Vulkan"; }
static size_t count(struct registry *self) { (void)self; return 0; }
static void *device(struct registry *self, size_t index) { (void)self; (void)index; return NULL; }
static void *procedure(struct registry *self, const char *wanted) { (void)self; (void)wanted; return NULL; }
static struct registry registry = {2, name, count, device, procedure, NULL};

static int is(const char *wanted) {
    Dl_info self;
    char library[4096], path[4096], mood[16] = "";
    dladdr((void *)name, &self);
    snprintf(library, sizeof library, "%s", self.dli_fname);
    snprintf(path, sizeof path, "%s/mood", dirname(library));
    FILE *file = fopen(path, "r");
    if (file) {
        if (fscanf(file, "%15s", mood) != 1) mood[0] = 0;
        fclose(file);
    }
    return !strcmp(mood, wanted);
}

void *ggml_backend_rpc_reg(void) {
    if (getenv("GGML_DISABLE_VULKAN")) return NULL;
    while (is("hangs")) usleep(20000);
    if (is("crashes")) { fprintf(stderr, "LAST_WORDS\n"); abort(); }
    return &registry;
}
"""


class Backend:
    """The library; what it does is a file beside it."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._mood = directory / "mood"
        source, name = directory / "backend.c", "libggml-rpc.so.0"
        source.write_text(_SOURCE.replace("LAST_WORDS", LAST_WORDS))
        subprocess.run(
            ["cc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", directory / name, source, "-ldl"], check=True
        )
        monkeypatch.setenv("LD_LIBRARY_PATH", str(directory))

    def does(self, mood: str) -> None:
        """From the next process on; one that hangs goes on."""
        new = self._mood.with_suffix(".new")
        new.write_text(mood)
        new.replace(self._mood)


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Backend:
    directory = tmp_path / "backend"
    directory.mkdir()
    return Backend(directory, monkeypatch)


@pytest.mark.parametrize(
    ("mood", "reason", "exit_code"),
    [("crashes", "signal 6: ", -6), ("hangs", "it did not answer in time", None)],
)
async def test_a_backend_that_breaks_every_listing_is_left_out_with_the_reason_and_the_others_are_used(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, mood: str, reason: str, exit_code: int | None
) -> None:
    backend.does(mood)
    table = Devices(SystemClock(), settings=PATIENT)
    if mood == "hangs":
        hurry(monkeypatch, lambda _, environment: "GGML_DISABLE_VULKAN" not in environment)
    await table.probe()
    found = by_id(table)
    assert (found["cpu"].state, found["Vulkan"].state) == (OK, EXCLUDED)
    assert found["Vulkan"].state_reason.startswith(f"the probe failed: {reason}")
    assert found["Vulkan"].HasField("check_exit_code") == (exit_code is not None)
    assert found["Vulkan"].check_exit_code == (exit_code or 0)
    assert found["Vulkan"].check_last_line == (LAST_WORDS if mood == "crashes" else "")
    assert found["cpu"].speed_bytes_s > 0  # a process of its own has computed there
    assert table.engine_build
    # Runners are kept from it, too.
    if mood == "crashes":
        assert (await run_child("probe", [], timeout_s=60)).exit_code == -6
    alone = await run_child("probe", [], timeout_s=60, environment=table.environment(["cpu"]))
    assert alone.exit_code == 0


async def test_an_operator_has_a_backend_listed_again(backend: Backend, tmp_path: Path) -> None:
    backend.does("crashes")
    table = Devices(SystemClock(), settings=PATIENT, notes=DeviceNotes(tmp_path / "devices.json"))
    await table.probe()
    assert by_id(table)["Vulkan"].state == EXCLUDED
    assert (await table.reset("Vulkan")).state == EXCLUDED
    backend.does("nothing")
    assert (await table.reset("Vulkan")).state == OK
    assert by_id(table).keys() == {"cpu"}
    assert "GGML_DISABLE_VULKAN" not in table.environment(["cpu"])


async def test_a_backend_is_listed_again_by_itself_after_a_while(backend: Backend) -> None:
    class LaterClock(SystemClock):
        later_s = 0.0

        def wall_unix_s(self) -> float:
            return super().wall_unix_s() + self.later_s

    backend.does("crashes")
    clock, plug = LaterClock(), HotPlug(reprobe_s=3600)
    table = Devices(clock, settings=PATIENT, hot_plug=plug)
    watching = asyncio.create_task(table.watch())
    try:
        await table.start()
        assert by_id(table)["Vulkan"].state == EXCLUDED
        backend.does("nothing")
        clock.later_s = RETRY_S_MIN
        plug.ask()
        await until(lambda: by_id(table).keys() == {"cpu"}, deadline_s=60, what="nothing is left out any more")
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_cards_of_the_other_backends_are_listed_and_tested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(tmp_path, monkeypatch)
    devices = [CPU, gpu(1), gpu(2), gpu(2, "Vulkan")]
    engine.write(backends=["CUDA", "Vulkan", "CPU"], devices=devices, kills_backend="Vulkan")
    table = Devices(SystemClock())
    await table.probe()
    states = {device.id: (device.backend, device.state) for device in table.devices()}
    assert states == {
        "cpu": ("CPU", OK),
        "GPU-1": ("CUDA", OK),
        "GPU-2": ("CUDA", OK),
        "Vulkan": ("Vulkan", EXCLUDED),
    }
    assert table.environment(["GPU-1"])["GGML_DISABLE_VULKAN"] == "1"
    assert table.free_bytes().keys() == {"cpu", "GPU-1", "GPU-2"}
    engine.write(kills_backend="")
    await table.probe()
    assert {device.id: device.state for device in table.devices()} == {"cpu": OK, "GPU-1": OK, "GPU-2": OK}
    assert "GGML_DISABLE_VULKAN" not in table.environment(["GPU-1"])


async def test_a_host_whose_engine_hangs_shows_itself_and_its_devices_when_they_are_known(
    backend: Backend, tmp_path: Path, models_directory: Path
) -> None:
    def cpu(inventory: Inventory) -> cluster_pb2.Device:
        devices = (device for node in inventory.nodes for device in node.devices if device.id == "cpu")
        return next(devices, cluster_pb2.Device())

    note_ram_speed(tmp_path / "speed")  # once for this process, by an engine that answers
    backend.does("hangs")
    async with running_node(tmp_path, models_directory, ready="host.serves", PUNA_PROBE_TIMEOUT_S="600") as node:
        probing = cluster_pb2.DEVICE_STATE_PROBING
        told = cpu(await node.inventory(lambda inventory: cpu(inventory).state == probing))
        assert told.state_reason == "the engine is being asked what there is"
        assert told.total_bytes > told.free_bytes > 0  # the kernel has said so
        assert await health(node.address) == {"": SERVING, "puna.v1.Host": NOT_SERVING}
        backend.does("nothing")
        await node.inventory(lambda inventory: cpu(inventory).state == OK)
        await node.host.event("host.ready")
        assert await health(node.address) == {"": SERVING, "puna.v1.Host": SERVING}


async def health(address: str) -> dict[str, int]:
    async with open_channel(address) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check  # type: ignore[attr-defined]  # the stub lacks it
        return {
            name: (await check(health_pb2.HealthCheckRequest(service=name), timeout=60)).status
            for name in ("", "puna.v1.Host")
        }

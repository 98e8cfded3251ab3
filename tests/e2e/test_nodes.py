"""Three machines with two small devices each: models over devices and over nodes, and what happens when a node goes."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import orjson
import pytest

from discovery.client import watch_inventory
from protos import cluster_pb2, discovery_pb2
from tests.e2e.namespaces import (
    DEVICE_PORTS,
    ENDLESS,
    HOST_PORT,
    TUNNEL_PORT,
    Machines,
    missing,
    request_body,
    running_machines,
)
from tests.integration.runner.processes import collect, greedy, started
from tests.limited_device import limited_device
from tests.waiting import wait_until
from tools.model_zoo import build, shape
from tools.model_zoo.recipe import WeightType

DEVICE_MIB = 512
# One fits a device, one needs two of a node, one needs more than a node has.
CONTEXTS = {"one": 2048, "pair": 24576, "wide": 49152}
LAYERS = 9

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("node-models")
    base = replace(shape("57m"), weights=WeightType.F16, vocabulary_tokens=1024, kv_heads=8, context_tokens=1 << 16)
    for number, name in enumerate(CONTEXTS):
        build(replace(base, name=name, seed=5 + number), directory)
    return directory


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[Machines]:
    why = missing()
    if why:
        pytest.skip(why)
    directory = tmp_path_factory.mktemp("nodes")
    with running_machines(directory, models, names=("a", "b", "c"), device_mib=DEVICE_MIB) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def unloaded(machines: Machines) -> Iterator[None]:
    """Each test leaves the devices empty."""
    yield
    for model in CONTEXTS:
        httpx.post(f"{machines.url}/api/generate", json={"model": model, "keep_alive": 0}, timeout=60)
    wait_until(lambda: not machines.runners(), deadline_s=60, what="everything is unloaded")


def ask(machines: Machines, model: str) -> str:
    """Ask a model, none of which may lie in host RAM, and return its answer."""
    answer = machines.answer(model, num_ctx=CONTEXTS[model], require_gpu=True)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["response"]
    return text


async def layout_of(machines: Machines, model: str) -> tuple[str, list[cluster_pb2.DeviceLayers]]:
    """The node that runs a model, and where its layers lie."""
    inventory = await current_inventory(machines)
    return next(
        (node.id, list(runner.layout.devices))
        for node in inventory.nodes
        for runner in node.runners
        if runner.model_name == f"{model}:latest" and runner.status.state != cluster_pb2.RUNNER_STATE_ERROR
    )


def keep_on(machines: Machines, model: str, *nodes: str) -> None:
    """Allow a model on these nodes only; on all, if none is named."""
    url = f"{machines.url}/puna/v1/placements/{model}"
    httpx.put(url, json={"nodes": nodes}, timeout=60).raise_for_status()


async def current_inventory(machines: Machines) -> discovery_pb2.Inventory:
    stream = watch_inventory(machines.discovery_address)
    try:
        async with asyncio.timeout(60):
            async for inventory in stream:
                return inventory
    finally:
        await stream.aclose()
    raise AssertionError("discovery does not answer")


async def said_on_one_device(models: Path, model: str, directory: Path) -> str:
    """The same model on a single device that is large enough."""
    with limited_device(mib=2048) as device:
        layout = {
            "devices": [{"device_id": "gpu", "layer_count": LAYERS, "rpc_address": device.address}],
            "context_tokens": CONTEXTS["one"],
            "slots": 1,
        }
        async with started(models / f"{model}.gguf", directory, layout=orjson.dumps(layout).decode()) as runner:
            await runner.ready()
            prompt = str(request_body(model)["prompt"])
            said = await collect(runner.client, greedy(prompt, max_tokens=16, ignore_eos=False))
            return said.text


async def test_models_lie_over_devices_and_nodes_and_answer_as_on_one_device(
    machines: Machines, models: Path, tmp_path: Path
) -> None:
    await asyncio.to_thread(ask, machines, "one")
    said = {"pair": await asyncio.to_thread(ask, machines, "pair")}
    _, one = await layout_of(machines, "one")
    _, pair = await layout_of(machines, "pair")
    assert len(one) == 1
    assert [part.node_id for part in pair] == ["", ""]
    await asyncio.to_thread(_unload, machines, "one", "pair")
    said["wide"] = await asyncio.to_thread(ask, machines, "wide")
    _, wide = await layout_of(machines, "wide")
    assert len({part.node_id for part in wide}) >= 2, "it lies on one node"
    assert sum(part.layer_count for part in wide) == LAYERS, "a part of it lies in host RAM"
    for model in ("pair", "wide"):
        assert said[model] == await said_on_one_device(models, model, _new(tmp_path, model)), model


async def test_nothing_that_lends_can_be_reached_from_another_machine(machines: Machines) -> None:
    await asyncio.to_thread(ask, machines, "wide")
    head, parts = await layout_of(machines, "wide")
    lender = machines.machines[next(part.node_id for part in parts if part.node_id)]
    private = lender.listening_ports(loopback=True)
    assert set(DEVICE_PORTS) <= private
    open_ports = lender.listening_ports(loopback=False)
    assert {HOST_PORT, TUNNEL_PORT} <= open_ports
    assert not open_ports & set(DEVICE_PORTS)
    for machine in machines.machines.values():
        if machine is not lender:
            reached = [port for port in sorted(private) if machine.can_connect(lender.address, port)]
            assert reached == [], machine.name
    # The tunnel's port is open, and useless without the certificate that the lease names.
    assert machines.machines[head].can_connect(lender.address, TUNNEL_PORT)
    for machine in machines.machines.values():
        asked = machine.run([sys.executable, "-c", _STRANGER.format(lender.address, TUNNEL_PORT)])
        assert asked.stdout == "refused\n", asked.stderr
    log = (machines.directory / f"{lender.name}.log").read_text()
    assert log.count("tunnel.refused") >= len(machines.machines), "the handshakes ended otherwise"


async def test_a_node_that_is_cut_off_takes_only_what_uses_it_and_the_model_comes_back(machines: Machines) -> None:
    expected = await asyncio.to_thread(ask, machines, "wide")
    head, parts = await layout_of(machines, "wide")
    lender = next(part.node_id for part in parts if part.node_id)
    other = next(name for name in machines.machines if name not in (head, *(part.node_id for part in parts)))
    keep_on(machines, "one", other)
    await asyncio.to_thread(ask, machines, "one")
    assert (await layout_of(machines, "one"))[0] == other
    streams = {model: _Stream(machines, model) for model in ("wide", "one")}
    for stream in streams.values():
        wait_until(lambda one=stream: one.lines > 3, deadline_s=60, what="the stream runs")  # type: ignore[misc]
    machines.machines[lender].cut_off()
    try:
        wait_until(streams["wide"].over.is_set, deadline_s=60, what="the stream over the lost node has ended")
        assert streams["wide"].error
        assert not streams["one"].over.is_set()
        streams["one"].stop_after(3)
        wait_until(streams["one"].over.is_set, deadline_s=60, what="the other stream goes on")
        assert streams["one"].error == ""
    finally:
        machines.machines[lender].reconnect()

    def is_back() -> bool:
        answer = machines.generate("wide", num_ctx=CONTEXTS["wide"], require_gpu=True)
        return answer.status_code == 200 and answer.json()["response"] == expected

    wait_until(is_back, deadline_s=90, what="the model answers again")
    assert (await layout_of(machines, "one"))[0] == other, "a runner that did not use the node was touched"
    keep_on(machines, "one")


async def test_nothing_lands_where_an_outsider_takes_the_memory_while_a_load_is_planned(machines: Machines) -> None:
    left = machines.machines["c"]
    hogged = [device for machine in machines.machines.values() if machine is not left for device in machine.devices]
    asked = asyncio.create_task(asyncio.to_thread(ask, machines, "pair"))
    try:
        for device in hogged:  # while it is planned: the figures that the scheduler has say that all of it is free
            await asyncio.to_thread(device.take)
        await asked
        node, parts = await layout_of(machines, "pair")
        assert node == left.name
        assert all(part.node_id in ("", left.name) for part in parts)
        assert all(device.used_bytes() == 0 for device in hogged)
    finally:
        for device in hogged:
            device.give_back()


def _unload(machines: Machines, *models: str) -> None:
    for model in models:
        httpx.post(f"{machines.url}/api/generate", json={"model": model, "keep_alive": 0}, timeout=60)
    wait_until(lambda: not machines.runners(), deadline_s=60, what="they are unloaded")


def _new(directory: Path, name: str) -> Path:
    found = directory / name
    found.mkdir()
    return found


class _Stream:
    """A long answer, read in a thread. It does not go on elsewhere when its replica is lost: tests/faults show that."""

    def __init__(self, machines: Machines, model: str) -> None:
        self.lines = 0
        self.error = ""
        self.over = threading.Event()
        self._lines_max: int | None = None
        options = {"num_ctx": CONTEXTS[model], "num_predict": 20_000, "require_gpu": True, **ENDLESS}
        body = request_body(model, stream=True, **options)
        threading.Thread(target=self._read, args=(f"{machines.url}/api/generate", body), daemon=True).start()

    def stop_after(self, lines: int) -> None:
        """Leave once so many more lines have come."""
        self._lines_max = self.lines + lines

    def _read(self, url: str, body: dict[str, object]) -> None:
        try:
            headers = {"x-puna-resume": "0"}
            with httpx.stream("POST", url, json=body, headers=headers, timeout=240) as answer:
                for line in answer.iter_lines():
                    self.lines += 1
                    self.error = orjson.loads(line).get("error", "")
                    if self.error or (self._lines_max is not None and self.lines >= self._lines_max):
                        return
        except httpx.HTTPError as error:
            self.error = str(error) or type(error).__name__
        finally:
            self.over.set()


# Without any certificate. In TLS 1.3 the refusal comes with the first read, as an alert or as the connection's end.
_STRANGER = """
import socket, ssl
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
try:
    with context.wrap_socket(socket.create_connection(("{0}", {1}), 2)) as tunnel:
        tunnel.sendall(b"x\\n")
        print("refused" if tunnel.recv(1) == b"" else "answered")
except OSError:
    print("refused")
"""

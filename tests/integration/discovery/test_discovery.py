"""A real discovery process and hosts played by this test."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from grpc import aio

from common.errors import PermissionDenied
from common.grpc.client import open_channel
from common.grpc.errors import from_rpc_error
from discovery.client import watch_inventory
from discovery.registry import SILENCE_S_MAX
from discovery.servicer import FIGURES_INTERVAL_S, INVENTORY_INTERVAL_S_MIN
from protos import cluster_pb2, discovery_pb2, discovery_pb2_grpc
from tests.cluster import metric_sum
from tests.integration.host.node import Service, start_discovery
from tests.ports import free_port
from tests.trust import Cluster as Certificates
from tests.trust import acting_as
from tests.waiting import Stopwatch

DEADLINE_S = 60.0
Inventory = discovery_pb2.Inventory


@pytest.fixture
async def discovery(tmp_path: Path) -> AsyncIterator[Service]:
    running = await start_discovery(tmp_path)
    try:
        yield running
    finally:
        assert await running.end() == 0


@pytest.fixture
async def address(discovery: Service) -> str:
    listens_at: str = (await discovery.event("discovery.ready"))["address"]
    return listens_at


class FakeHost:
    """One registration stream, spoken by hand."""

    def __init__(self, address: str, node_id: str = "node", *, incarnation: str = "x", started: int = 1) -> None:
        self.node_id, self.incarnation, self.started = node_id, incarnation, started
        self.channel = open_channel(address, "discovery")
        self.call: aio.StreamStreamCall[discovery_pb2.HostReport, discovery_pb2.RegisterAck] = (
            discovery_pb2_grpc.DiscoveryStub(self.channel).Register()
        )

    async def say(self, **sections: object) -> None:
        """Send a report with these sections."""
        report = discovery_pb2.HostReport(
            node_id=self.node_id,
            incarnation=self.incarnation,
            started_at_unix_ms=self.started,
            **sections,  # type: ignore[arg-type]  # sections by name
        )
        await self.call.write(report)

    async def register(self) -> None:
        """Send a complete report and wait until it is acknowledged."""
        await self.say(
            facts=discovery_pb2.HostFacts(address="h:1"),
            devices=discovery_pb2.DeviceList(),
            models=discovery_pb2.ModelList(),
            runners=discovery_pb2.RunnerList(),
        )
        async with asyncio.timeout(DEADLINE_S):
            await self.call.read()

    async def refusal(self) -> Exception:
        """The error with which discovery ends the stream."""
        with pytest.raises(aio.AioRpcError) as caught:
            await asyncio.wait_for(self._read_all(), DEADLINE_S)
        return from_rpc_error(caught.value)

    async def _read_all(self) -> None:
        while await self.call.read() is not aio.EOF:
            pass

    async def vanish(self) -> None:
        """As a process that dies: the connection is cut."""
        await self.channel.close()


class Watcher:
    """The newest inventory of a watch stream."""

    def __init__(self, address: str) -> None:
        self.connections: list[bool] = []
        self._stream = watch_inventory(address, on_connection=self.connections.append)

    async def until(self, *node_ids: str, suspect: bool = False) -> Inventory:
        """The first inventory with exactly these nodes, all or none of them suspect."""
        async with asyncio.timeout(DEADLINE_S):
            async for inventory in self._stream:
                if [node.id for node in inventory.nodes] == list(node_ids) and all(
                    node.suspect == suspect for node in inventory.nodes
                ):
                    return inventory
        raise AssertionError("the stream ended")

    async def close(self) -> None:
        await self._stream.aclose()


async def test_a_node_is_seen_while_its_stream_is_open_and_gone_at_once_when_it_breaks(address: str) -> None:
    watcher, host = Watcher(address), FakeHost(address)
    await watcher.until()
    await host.register()
    await watcher.until("node")
    watch = Stopwatch()
    await host.vanish()
    await watcher.until()
    took_s = watch.wall_s
    await watcher.close()
    watch.assert_within(1.0, "the node leaves the inventory", took_s=took_s)


async def test_a_model_of_an_older_host_whose_name_is_none_is_named_and_the_others_are_there(
    address: str, discovery: Service
) -> None:
    watcher, host = Watcher(address), FakeHost(address)
    bad = "two\nlines (1):latest"
    await host.say(
        facts=discovery_pb2.HostFacts(address="h:1"),
        devices=discovery_pb2.DeviceList(),
        models=discovery_pb2.ModelList(models=[cluster_pb2.Model(name=name) for name in (bad, "good:latest")]),
        runners=discovery_pb2.RunnerList(),
    )
    (node,) = (await watcher.until("node")).nodes
    assert [model.name for model in node.models] == ["good:latest"]
    event = await discovery.event("row.skipped")
    assert (event["level"], event["node"], event["table"]) == ("warning", "node", "models")
    assert (event["name"], event["text"]) == (r"two\nlines (1):latest", "not a valid model name")
    async with httpx.AsyncClient() as client:
        page = await client.get(f"http://{(await discovery.event('discovery.ready'))['metrics_address']}/metrics")
    assert metric_sum(page.text, "puna_discovery_skipped_rows_total") == 1
    await watcher.close()
    await host.vanish()


async def test_what_all_nodes_say_of_their_models_fits_in_an_inventory(address: str) -> None:
    """A client that may create models could fill several nodes with texts, and no service would hear of any node."""
    hosts = [FakeHost(address, f"node{number}") for number in range(3)]
    shared = described("shared:latest", "x" * 2**20, at_s=1)
    for host in hosts:
        own = [described(f"{host.node_id}-{letter}:latest", letter * 2**20, at_s=2) for letter in "abcdefghijklmn"]
        await host.say(
            facts=discovery_pb2.HostFacts(address="h:1"),
            devices=discovery_pb2.DeviceList(),
            models=discovery_pb2.ModelList(models=[*own, shared]),
            runners=discovery_pb2.RunnerList(),
        )
        async with asyncio.timeout(DEADLINE_S):
            await host.call.read()
    watcher = Watcher(address)
    nodes = (await watcher.until("node0", "node1", "node2")).nodes
    usable = [[model.name for model in node.models if not model.error] for node in nodes]
    assert [len(names) for names in usable] == [15, 9, 1]
    assert all("shared:latest" in names for names in usable)  # its texts pass once
    refused = [model.error for node in nodes for model in node.models if model.error]
    assert len(refused) == 20
    assert all("this cluster are too long together" in error for error in refused)
    await watcher.close()
    for host in hosts:
        await host.vanish()


def described(name: str, text: str, *, at_s: int) -> cluster_pb2.Model:
    description = cluster_pb2.ModelDescription(architecture="llama", metadata_json=f"{name}{text}")
    return cluster_pb2.Model(name=name, modified_at_unix_s=at_s, description=description)


async def test_an_incomplete_first_report_is_refused_with_what_it_lacks(address: str) -> None:
    host = FakeHost(address)
    await host.say(facts=discovery_pb2.HostFacts(address="h:1"))
    assert str(await host.refusal()) == "the first report lacks devices, models, runners"
    await host.vanish()


async def test_a_stream_speaks_for_one_node_only(address: str) -> None:
    host = FakeHost(address)
    await host.register()
    host.node_id = "other"
    await host.say()
    assert "must not change" in str(await host.refusal())
    await host.vanish()


async def test_a_newer_process_of_the_same_node_takes_over_and_the_older_is_told(address: str) -> None:
    watcher = Watcher(address)
    old = FakeHost(address, incarnation="old", started=1)
    await old.register()
    await watcher.until("node")
    new = FakeHost(address, incarnation="new", started=2)
    await new.register()
    await old.say()
    assert "newer host process" in str(await old.refusal())
    late = FakeHost(address, incarnation="old", started=1)
    await late.say(
        facts=discovery_pb2.HostFacts(),
        devices=discovery_pb2.DeviceList(),
        models=discovery_pb2.ModelList(),
        runners=discovery_pb2.RunnerList(),
    )
    assert "newer host process" in str(await late.refusal())
    async with open_channel(address) as channel:
        stub = discovery_pb2_grpc.DiscoveryStub(channel)
        inventory = await anext(aiter(stub.WatchInventory(discovery_pb2.WatchInventoryRequest())))
    assert [node.incarnation for node in inventory.nodes] == ["new"]
    for host in (old, late, new):
        await host.vanish()
    await watcher.close()


async def test_a_silent_node_becomes_suspect_and_recovers_with_its_next_word(address: str) -> None:
    watcher, host = Watcher(address), FakeHost(address)
    since_before = Stopwatch()
    await host.register()
    await watcher.until("node")
    since_after = Stopwatch()
    await watcher.until("node", suspect=True)
    assert since_before.wall_s >= SILENCE_S_MAX
    suspected_s = since_after.wall_s
    await host.say()
    await watcher.until("node")
    await host.vanish()
    await watcher.close()
    since_after.assert_within(2 * SILENCE_S_MAX, "the node is suspect", took_s=suspected_s)


async def test_a_slow_watcher_gets_the_newest_inventory_and_skips_what_was_between(address: str) -> None:
    host = FakeHost(address)
    await host.register()
    async with open_channel(address) as channel:
        stream = aiter(discovery_pb2_grpc.DiscoveryStub(channel).WatchInventory(discovery_pb2.WatchInventoryRequest()))
        first = await anext(stream)
        watch = Stopwatch()
        for number in range(200):
            await host.say(facts=discovery_pb2.HostFacts(address=f"h:{number}"))
        received = [first]
        async with asyncio.timeout(DEADLINE_S):
            while received[-1].nodes[0].address != "h:199":
                received.append(await anext(stream))
    assert len(received) <= 2 + watch.wall_s / INVENTORY_INTERVAL_S_MIN
    versions = [inventory.version for inventory in received]
    assert versions == sorted(set(versions))
    await host.vanish()


async def test_figures_that_only_age_are_told_seldom_and_the_newest_of_them_with_the_next_news(address: str) -> None:
    host = FakeHost(address)
    await host.register()

    def devices(age_ms: int, free_gib: int = 8) -> discovery_pb2.DeviceList:
        device = cluster_pb2.Device(id="GPU-1", free_bytes=free_gib * 1024**3, free_age_ms=age_ms)
        return discovery_pb2.DeviceList(devices=[device])

    async with open_channel(address) as channel:
        stream = aiter(discovery_pb2_grpc.DiscoveryStub(channel).WatchInventory(discovery_pb2.WatchInventoryRequest()))
        await anext(stream)
        watch = Stopwatch()
        await host.say(devices=devices(0))
        await anext(stream)
        await host.say(devices=devices(1))
        aged = await anext(stream)
        assert watch.wall_s > 0.9 * FIGURES_INTERVAL_S
        assert aged.nodes[0].devices[0].free_age_ms >= 1
        await host.say(devices=devices(2))
        await host.say(devices=devices(3, free_gib=2))
        watch = Stopwatch()
        received = [await anext(stream)]
        while received[-1].nodes[0].devices[0].free_bytes != 2 * 1024**3:
            received.append(await anext(stream))
        assert len(received) <= 2 + watch.wall_s / FIGURES_INTERVAL_S
    await host.vanish()


async def test_the_client_follows_discovery_through_a_restart(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    first = await start_discovery(tmp_path, address)
    await first.event("discovery.ready")
    watcher = Watcher(address)
    await watcher.until()
    await first.end()
    again = asyncio.create_task(watcher.until())
    second = await start_discovery(tmp_path, address)
    assert (await again).uptime_ms < 60_000
    assert watcher.connections == [True, False, True]
    await watcher.close()
    await second.end()


async def test_a_taken_port_is_one_line_and_status_1(address: str, tmp_path: Path) -> None:
    second = await start_discovery(tmp_path, address)
    assert await second.process.wait() == 1
    await second.end()
    assert second.plain == [f"puna discovery: {address} is already in use"]


async def test_the_health_service_says_serving(address: str) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "common.healthcheck", address)
    assert await process.wait() == 0


async def test_a_start_in_the_future_takes_no_node_over_and_keeps_none(address: str, discovery: Service) -> None:
    watcher = Watcher(address)
    real = FakeHost(address, incarnation="real")
    await real.register()
    forged = FakeHost(address, incarnation="forged", started=2**64 - 1)
    await forged.say(
        facts=discovery_pb2.HostFacts(),
        devices=discovery_pb2.DeviceList(),
        models=discovery_pb2.ModelList(),
        runners=discovery_pb2.RunnerList(),
    )
    assert "newer host process" in str(await forged.refusal())
    await real.vanish()
    await watcher.until()
    first = FakeHost(address, incarnation="forged", started=2**64 - 1)
    await first.register()
    assert (await discovery.event("node.starts_in_future"))["started_at_unix_ms"] == 2**64 - 1
    again = FakeHost(address, incarnation="real")
    await again.register()
    (node,) = (await watcher.until("node")).nodes
    while node.incarnation != "real":
        (node,) = (await watcher.until("node")).nodes
    for host in (forged, first, again):
        await host.vanish()
    await watcher.close()


async def test_a_node_registers_under_the_name_of_its_certificate_alone(tmp_path: Path) -> None:
    cluster = Certificates(tmp_path)
    trust = str(cluster.directory("discovery"))
    running = await start_discovery(tmp_path, PUNA_TRUST=trust)
    try:
        address = (await running.event("discovery.ready"))["address"]
        with acting_as(cluster.identity("node/b")):
            impostor = FakeHost(address, "a")
            await impostor.say(facts=discovery_pb2.HostFacts(address="h:1"))
            refusal = await impostor.refusal()
            assert isinstance(refusal, PermissionDenied)
            assert refusal.message == "node/b may not register node 'a'"
            itself = FakeHost(address, "b")
            await itself.register()
        with acting_as(cluster.identity("scheduler")):
            watcher = Watcher(address)
            await watcher.until("b")
            await watcher.close()
        await itself.vanish()
        await impostor.vanish()
        assert healthcheck(address, trust) == 0
        assert healthcheck(address, str(cluster.directory("gateway"))) == 1
    finally:
        assert await running.end() == 0


def healthcheck(address: str, trust: str) -> int:
    command = [sys.executable, "-m", "common.healthcheck", address]
    return subprocess.run(command, env={**os.environ, "PUNA_TRUST": trust}, check=False, capture_output=True).returncode

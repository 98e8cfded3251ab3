"""A host and two discoveries, all real: it is known to both, and stays known when one dies."""

from pathlib import Path

import pytest

from discovery.client import watch_inventory
from protos import discovery_pb2
from tests.integration.host.node import start_discovery, start_host
from tests.ports import free_port
from tests.waiting import until


async def _sees(address: str, node_id: str) -> discovery_pb2.Inventory:
    stream = watch_inventory(address)
    try:
        async for inventory in stream:
            if any(node.id == node_id and node.devices for node in inventory.nodes):
                return inventory
    finally:
        await stream.aclose()
    raise AssertionError("the stream ended")


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("r")


async def test_a_host_registers_with_every_discovery_and_again_with_one_that_returns(short: Path) -> None:
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    one, two = [await start_discovery(short / str(number), listen) for number, listen in enumerate(addresses)]
    for service in (one, two):
        await service.event("discovery.ready")
    host = await start_host(
        {
            "PUNA_HOME": str(short),
            "PUNA_NODE_ID": "a",
            "PUNA_NODE_LISTEN": "127.0.0.1:0",
            "PUNA_DISCOVERY_ADDRESS": ",".join(addresses),
        }
    )
    try:
        for address in addresses:
            await _sees(address, "a")
        one.process.kill()
        await one.process.wait()
        await until(lambda: any(event.get("event") == "discovery.lost" for event in host.events), what="the loss")
        await _sees(",".join(addresses), "a")
        one = await start_discovery(short / "0", addresses[0])
        await _sees(addresses[0], "a")
        assert host.process.returncode is None
    finally:
        assert await host.end() == 0
        assert await two.end() == 0
        await one.end()

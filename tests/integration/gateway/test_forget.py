"""Forgetting a tenant, from the route and the command to the states of a node."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from cli.commands.keys import create
from common.clock import SystemClock
from common.grpc.server import bind_server
from gateway.core.keys.keys import cache_salt
from protos import host_pb2_grpc
from runner.core.states.catalogue import StateEntry
from runner.core.states.chain import chain, name_space, state_key
from runner.core.states.gate import Tier
from runner.host.faults import NodeFaults
from runner.host.lending.tunnel_listener import TunnelListener
from runner.host.runners.measurements import Measurements
from runner.host.runners.supervisor import RunnerSupervisor
from runner.host.servicer import HostServicer
from runner.host.states.disk import StateRecord
from runner.host.states.peers import PeerStates
from runner.host.states.store import NodeStates
from runner.sealed_memory import create_memory_file, seal
from tests.integration.gateway.conftest import Cluster, StartCluster
from tests.integration.gateway.test_chaos import NODE, SchedulerOfOneNode
from tests.integration.runner.saved_states import count, open_node
from tests.openapi_answers import fault_of

PATH = "/puna/v1/states/forget"
SIZE = 5000


def save(states: NodeStates, salt: str, *, epoch: int = 0) -> bool:
    """Let the node have a state of a tenant."""
    inputs = list(range(300, 500))
    links = chain(name_space({}), salt, inputs)
    entry = StateEntry(
        key=state_key(links, inputs), links=links, inputs=200, size_bytes=SIZE, tier=Tier.RAM, saved_s=1.0
    )
    descriptor = create_memory_file()
    os.write(descriptor, bytes(SIZE))
    seal(descriptor)
    record = StateRecord(entry=entry, domain=b"m", salt=salt, saved_at_s=SystemClock().wall_unix_s())
    return states.put(record, descriptor, epoch=epoch)


@pytest.fixture
async def states(tmp_path: Path) -> AsyncIterator[NodeStates]:
    node = open_node(tmp_path)
    yield node
    await node.close()


@pytest.fixture
async def address(states: NodeStates, tmp_path: Path) -> AsyncIterator[str]:
    """Address of the node's host."""
    others = (cast("RunnerSupervisor", None), cast("Measurements", None), cast("TunnelListener", None))
    servicer = HostServicer(*others, cast("NodeFaults", None), states, cast("PeerStates", None))
    server = bind_server(
        f"unix:{tmp_path}/h",
        register=lambda server: host_pb2_grpc.add_HostServicer_to_server(servicer, server),
        services=[],
    )
    await server.start()
    yield server.address
    await server.stop(1)


@pytest.fixture
async def cluster(
    start_cluster: StartCluster, address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[Cluster]:
    file = tmp_path / "keys.json"
    create({"owner": "ada", "tenant": "ada", "scopes": ["admin:cluster"]}, file, as_json=True)
    key = json.loads(capsys.readouterr().out)["key"]
    async with start_cluster(scheduler=SchedulerOfOneNode(node_address=address), api_keys_file=str(file)) as cluster:
        cluster.http.headers["authorization"] = f"Bearer {key}"
        yield cluster


def salt_of(tmp_path: Path, tenant: str) -> str:
    """Return the salt that gateways with this file of keys use."""
    from gateway.keys.key_store import KeyStore

    return cache_salt(KeyStore.open(tmp_path / "keys.json").ring.pepper, tenant)


async def test_everything_of_one_tenant_goes_and_stays_gone(
    cluster: Cluster, states: NodeStates, tmp_path: Path
) -> None:
    ada, eve = salt_of(tmp_path, "ada"), salt_of(tmp_path, "eve")
    assert save(states, ada)
    assert save(states, eve)
    answer = await cluster.http.post(PATH, json={"tenant": "ada"})
    assert answer.status_code == 200
    assert answer.json() == {"nodes": [{"node": NODE, "states": 1, "bytes": SIZE, "error": ""}]}
    document = (await cluster.http.get("/openapi.json")).json()
    assert fault_of(document, "POST", PATH, 200, answer.headers["content-type"], answer.content) == ""
    assert count(states) == 1
    assert not save(states, ada), "it was copied before the runner obeyed"
    assert save(states, ada, epoch=states.epoch)


async def test_a_file_that_comes_back_from_a_copy_is_refused(
    cluster: Cluster, states: NodeStates, tmp_path: Path
) -> None:
    save(states, salt_of(tmp_path, "ada"))
    for name in list(states._kept):
        await states._write(name)
    (path,) = (tmp_path / "states").glob("*.state")
    copy = path.read_bytes()
    await cluster.http.post(PATH, json={"tenant": "ada"})
    assert not path.exists()
    path.write_bytes(copy)
    later = open_node(tmp_path)
    await later.load()
    assert count(later) == 0
    assert not await asyncio.to_thread(path.exists)
    await later.close()


async def test_a_node_that_cannot_note_the_order_is_named_and_keeps_its_states(
    cluster: Cluster, states: NodeStates, tmp_path: Path
) -> None:
    save(states, salt_of(tmp_path, "ada"))
    (tmp_path / "forgotten.json").mkdir()
    (node,) = (await cluster.http.post(PATH, json={"tenant": "ada"})).json()["nodes"]
    assert (node["states"], "cannot be noted" in node["error"]) == (0, True)
    assert count(states) == 1


async def test_no_tenant_can_be_named_where_all_share_their_prompts(
    start_cluster: StartCluster, address: str, states: NodeStates
) -> None:
    save(states, "")
    async with start_cluster(scheduler=SchedulerOfOneNode(node_address=address)) as cluster:
        answer = await cluster.http.post(PATH, json={"tenant": "ada"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tenant")
        assert count(states) == 1
        assert (await cluster.http.post(PATH, json={})).json()["nodes"][0]["states"] == 1

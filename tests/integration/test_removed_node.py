"""A node is removed from a cluster of real processes: all of them refuse it, also after they were restarted."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from grpc import StatusCode, aio

from common.grpc.client import open_channel
from common.trust.identity import HeldIdentity, Identity
from protos import discovery_pb2, discovery_pb2_grpc, store_pb2, store_pb2_grpc
from tests.integration.host.node import ROOT, Service, pids_below
from tests.ports import free_port
from tests.redis_server import redis_server
from tests.trust import Cluster, acting_as
from tests.waiting import Stopwatch, next_look, until
from tools.model_zoo import build

DEADLINE_S = 60.0
REFUSED_S_MAX = 2.0


@dataclass
class Processes:
    """Redis, discovery, scheduler, gateway, and the nodes a and b, with certificates."""

    cluster: Cluster
    directory: Path
    addresses: dict[str, str]
    environment: dict[str, str]
    running: dict[str, Service] = field(default_factory=dict)

    async def start(self, *roles: str) -> None:
        for role in roles:
            own = {"PUNA_TRUST": str(self.cluster.authority.directory / role), "PUNA_HOME": str(self.home(role))}
            words = ("discovery",) if role == "discovery" else ("runner", "host") if "/" in role else (role,)
            if "/" in role:
                own["PUNA_NODE_LISTEN"] = self.addresses[role]
            self.running[role] = await Service.start(*words, environment=self.environment | own)

    def home(self, role: str) -> Path:
        return self.directory / role.replace("/", "-")

    async def kill(self, *roles: str) -> None:
        for role in roles:
            await self.running.pop(role).end(signal.SIGKILL)

    async def close(self) -> None:
        await asyncio.gather(*(service.end() for service in self.running.values()))
        for role in ("node/a", "node/b"):
            for pid in pids_below(self.home(role)):
                os.kill(pid, signal.SIGKILL)

    @property
    def url(self) -> str:
        return f"http://{self.environment['PUNA_HOST']}"

    async def nodes(self) -> list[str]:
        """The nodes that the gateway shows; none while there is no answer."""
        async with httpx.AsyncClient(timeout=DEADLINE_S) as client:
            answer = await client.get(f"{self.url}/puna/v1/nodes")
        return [str(node["id"]) for node in answer.json().get("nodes", [])]

    async def until_nodes(self, *wanted: str) -> None:
        watch, found = Stopwatch(), ["?"]
        while found != list(wanted):
            assert not watch.is_past(DEADLINE_S), f"nodes {found}, not {wanted}"
            await next_look()
            with contextlib.suppress(httpx.TransportError):
                found = await self.nodes()

    async def puna(self, *words: str) -> tuple[int, str]:
        """Run a command; its status and what it printed."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cli.main", *words),
            cwd=ROOT,
            env={**os.environ, "PUNA_HOST": self.url, "PUNA_HOME": str(self.directory)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await asyncio.wait_for(process.communicate(), DEADLINE_S)
        assert process.returncode is not None
        return process.returncode, output.decode()


@asynccontextmanager
async def processes(directory: Path) -> AsyncIterator[Processes]:
    cluster = Cluster(directory / "trust")
    roles = ("discovery", "scheduler", "gateway", "node/a", "node/b")
    for role in roles:
        cluster.directory(role)
    models = directory / "models"
    models.mkdir()
    build("dense", models)
    addresses = {role: f"127.0.0.1:{free_port()}" for role in (*roles, "http")}
    async with redis_server() as redis:
        started = Processes(
            cluster,
            directory,
            addresses,
            {
                "PUNA_MODELS": str(models),
                "PUNA_REDIS_URL": redis.url,
                "PUNA_DISCOVERY_LISTEN": addresses["discovery"],
                "PUNA_DISCOVERY_ADDRESS": addresses["discovery"],
                "PUNA_SCHEDULER_LISTEN": addresses["scheduler"],
                "PUNA_SCHEDULER_ADDRESS": addresses["scheduler"],
                "PUNA_HOST": addresses["http"],
                "PUNA_GRPC_HOST": addresses["gateway"],
                "PUNA_RUNNER_LISTEN": "127.0.0.1:0",
                "PUNA_METRICS_LISTEN": "127.0.0.1:0",
            },
        )
        try:
            await started.start(*roles)
            await started.until_nodes("a", "b")
            yield started
        finally:
            await started.close()


@pytest.fixture
async def puna(tmp_path: Path) -> AsyncIterator[Processes]:
    async with processes(tmp_path) as running:
        yield running


class Holder:
    """Anyone with the files of a node, as they are now."""

    def __init__(self, puna: Processes, node_id: str) -> None:
        own = Identity(puna.cluster.authority.directory / "node" / node_id).material()
        with acting_as(HeldIdentity(own.authorities, own.pair)):
            self.discovery = open_channel(puna.addresses["discovery"], "discovery")
            self.host = open_channel(puna.addresses["node/a"], "node/a")

    async def close(self) -> None:
        await self.discovery.close()
        await self.host.close()

    async def code_of_stat(self) -> StatusCode:
        """The answer of another node to a request for a file."""
        call = store_pb2_grpc.ModelStoreStub(self.host).StatBlob(store_pb2.StatBlobRequest(), timeout=DEADLINE_S)
        return await call.code()

    async def code_of_register(self) -> StatusCode:
        call = discovery_pb2_grpc.DiscoveryStub(self.discovery).Register(timeout=DEADLINE_S)
        return await call.code()

    async def watch(self) -> "aio.UnaryStreamCall[Any, discovery_pb2.Inventory]":
        request = discovery_pb2.WatchInventoryRequest(changes_only=True)
        call = discovery_pb2_grpc.DiscoveryStub(self.discovery).WatchInventory(request)
        await call.read()
        return call


async def end_of(call: "aio.UnaryStreamCall[Any, discovery_pb2.Inventory]") -> StatusCode:
    try:
        while await call.read() is not aio.EOF:
            pass
    except aio.AioRpcError:
        pass
    return await call.code()


async def becomes(read: Callable[[], Any], wanted: StatusCode) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while await read() is not wanted:
            await next_look()


REFUSED = StatusCode.UNAUTHENTICATED


async def test_a_removed_node_is_refused_by_all_within_two_seconds_and_comes_back_with_a_new_certificate(
    puna: Processes,
) -> None:
    stolen = Holder(puna, "b")
    assert await stolen.code_of_stat() is not REFUSED
    stream = await stolen.watch()
    status, output = await puna.puna("nodes", "remove", "b")
    watch = Stopwatch()
    assert (status, output) == (0, "b is removed; its certificates are refused\n")
    assert await stolen.code_of_register() is REFUSED
    await puna.until_nodes("a")
    await becomes(stolen.code_of_stat, REFUSED)
    async with asyncio.timeout(DEADLINE_S):
        assert await end_of(stream) is REFUSED
    refused_s = watch.wall_s

    # Each process starts without the others: what it knows is its own.
    await puna.kill("scheduler", "discovery", "node/a")
    await puna.start("node/a")
    await puna.running["node/a"].event("host.ready")
    assert await stolen.code_of_stat() is REFUSED
    await puna.start("discovery")
    await puna.running["discovery"].event("discovery.ready")
    assert await stolen.code_of_register() is REFUSED

    # The scheduler has it from Redis, for a discovery that has lost its disk.
    await puna.kill("discovery")
    kept = puna.home("discovery") / "removed-nodes-discovery.json"
    before = json.loads(kept.read_text())
    kept.unlink()
    await puna.start("discovery", "scheduler")
    await until(kept.exists, what="the list is there again")
    assert json.loads(kept.read_text()) == before
    await puna.until_nodes("a")

    puna.cluster.directory("node/b")
    await puna.until_nodes("a", "b")
    again = Holder(puna, "b")
    assert await again.code_of_stat() is not REFUSED
    assert await stolen.code_of_stat() is REFUSED
    await again.close()
    await stolen.close()
    watch.assert_within(REFUSED_S_MAX, "all refuse the node", took_s=refused_s)


async def test_answers_on_a_removed_node_go_on_elsewhere(puna: Processes) -> None:
    body = {"model": "dense", "prompt": "Hello", "raw": True, "options": {"num_predict": 3000, "temperature": 0}}
    tokens, removed, last = 0, "", {}
    async with (
        httpx.AsyncClient(timeout=DEADLINE_S) as client,
        client.stream("POST", f"{puna.url}/api/generate", json=body) as answer,
    ):
        async for line in answer.aiter_lines():
            last, tokens = json.loads(line), tokens + 1
            if tokens == 20:
                listed = (await client.get(f"{puna.url}/puna/v1/nodes")).json()["nodes"]
                (removed,) = [node["id"] for node in listed if node["runners"]]
                status, output = await puna.puna("nodes", "remove", removed)
                assert (status, output) == (0, f"{removed} is removed, with 1 replica; its certificates are refused\n")
    assert last["done"], last
    assert last["done_reason"] == "length", last
    async with httpx.AsyncClient(timeout=DEADLINE_S) as client:
        listed = (await client.get(f"{puna.url}/puna/v1/nodes")).json()["nodes"]
    assert [(node["id"], len(node["runners"])) for node in listed] == [({"a": "b", "b": "a"}[removed], 1)]


async def test_a_node_that_is_not_there_is_removed_only_if_that_is_said(puna: Processes) -> None:
    assert await puna.puna("nodes", "remove", "c") == (
        3,
        "puna: no node is called 'c'; --absent revokes the certificates of one that is away\n",
    )
    assert await puna.puna("nodes", "remove", "c", "--absent") == (0, "c is removed; its certificates are refused\n")
    status, output = await puna.puna("nodes", "remove", "c d", "--absent")
    assert (status, output) == (1, "puna: node_id must be the id of a node\n")

"""A real discovery and a real host in processes of their own, driven through their clients."""

import asyncio
import contextlib
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from common.errors import InvalidRequest
from discovery.client import watch_inventory
from protos import cluster_pb2, discovery_pb2, host_pb2
from runner.host.client import HostClient
from tests.integration.host.fake_host import SCENARIO
from tests.known_speed import note_ram_speed
from tests.ports import free_port
from tests.trust import Cluster

ROOT = Path(__file__).resolve().parents[3]
START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 60.0
DEADLINE_S = 60.0
SMALL = cluster_pb2.Layout(context_tokens=512, slots=2, batch_tokens=64, threads=1)

Inventory = discovery_pb2.Inventory


@dataclass(kw_only=True)
class Service:
    """One process and the events that it logged."""

    process: asyncio.subprocess.Process
    events: list[dict[str, Any]] = field(default_factory=list)
    plain: list[str] = field(default_factory=list)  # lines that are no JSON
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _reader: "asyncio.Task[None] | None" = None

    @classmethod
    async def start(cls, module: str, *arguments: str, environment: dict[str, str]) -> "Service":
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, *arguments),
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        service = cls(process=process)
        service._reader = asyncio.create_task(service._read())
        return service

    async def event(self, name: str, *, deadline_s: float = START_DEADLINE_S) -> dict[str, Any]:
        """Wait until an event of this name is logged; return the first one."""
        try:
            async with asyncio.timeout(deadline_s):
                while True:
                    for event in self.events:
                        if event.get("event") == name:
                            return event
                    if self.process.returncode is not None:
                        raise AssertionError(f"ended with {self.process.returncode}: {self.plain} {self.events}")
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"no {name} within {deadline_s} s: {self.plain} {self.events}") from None

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait for the end."""
        if self.process.returncode is None:
            self.process.send_signal(number)
        async with asyncio.timeout(STOP_DEADLINE_S):
            status = await self.process.wait()
            assert self._reader is not None
            await self._reader
        return status

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            try:
                self.events.append(orjson.loads(line))
            except ValueError:
                self.plain.append(line.decode().rstrip())
            self._news.set()
        self._news.set()


@dataclass(kw_only=True)
class Node:
    """The processes, where they listen, and the command of one leader."""

    home: Path
    models: Path
    environment: dict[str, str]
    discovery: Service
    host: Service
    discovery_address: str
    address: str = ""
    client: HostClient = field(default_factory=lambda: HostClient("node"))
    fence: host_pb2.Fence = field(default_factory=lambda: host_pb2.Fence(number=10, leader_id="leader"))
    _requests: list[host_pb2.StartRequest] = field(default_factory=list)

    @property
    def runner_files(self) -> Path:
        """Folder of the notes, locks and sockets of the host's runners."""
        return self.home / "runners"

    async def restart_host(self) -> None:
        """Start a host again in the same directory."""
        self.host = await start_host(self.environment)
        await self.client.forget(self.address)
        self.address = (await self.host.event("host.ready"))["address"]

    async def inventory(self, wanted: Callable[[Inventory], bool]) -> Inventory:
        """The first inventory from now on that is as wanted."""
        stream = watch_inventory(self.discovery_address)
        last = Inventory()
        try:
            async with asyncio.timeout(DEADLINE_S):
                async for last in stream:
                    if wanted(last):
                        return last
        except TimeoutError:
            raise AssertionError(f"not within {DEADLINE_S} s; last inventory:\n{last}") from None
        finally:
            await stream.aclose()
        raise AssertionError("the inventory stream ended")

    async def model(self, name: str) -> cluster_pb2.Model:
        """A model as the inventory shows it."""
        found = await self.inventory(lambda inventory: any(m.name == name for m in _models(inventory)))
        return next(model for model in _models(found) if model.name == name)

    async def start_request(self, name: str = "dense:latest", **changes: Any) -> host_pb2.StartRequest:
        """A Start of a new placement."""
        model = await self.model(name)
        placement = cluster_pb2.PlacementRef(placement_id=str(uuid.uuid4()), generation=1)
        parts = {"placement": placement, "model_name": name, "model_digest": model.digest, "layout": SMALL, **changes}
        request = host_pb2.StartRequest(fence=self.fence, **parts)
        self._requests.append(request)
        return request

    async def run(self, request: host_pb2.StartRequest) -> cluster_pb2.RunnerRecord:
        """Execute a Start to its end; the last record."""
        async with asyncio.timeout(DEADLINE_S):
            return [record async for record in self.client.start(self.address, request)][-1]

    async def stop(self, request: host_pb2.StartRequest, *, drain_ms: int = 0) -> None:
        """Stop what a Start started."""
        await self.client.stop(
            self.address,
            host_pb2.StopRequest(fence=self.fence, placement=request.placement, drain_ms=drain_ms),
        )

    async def clear(self) -> None:
        """Stop what was started; a failed runner stays in the inventory for a while."""
        for request in self._requests:
            if request.placement.placement_id and request.HasField("fence"):
                with contextlib.suppress(InvalidRequest):
                    await self.stop(request)
        self._requests.clear()
        failed = cluster_pb2.RUNNER_STATE_ERROR
        await self.inventory(lambda seen: all(one.status.state == failed for one in runners_of(seen)))


def _models(inventory: Inventory) -> list[cluster_pb2.Model]:
    return [model for node in inventory.nodes for model in node.models]


def runners_of(inventory: Inventory) -> list[cluster_pb2.RunnerRecord]:
    """Every runner of every node."""
    return [runner for node in inventory.nodes for runner in node.runners]


async def start_discovery(home: Path, listen: str = "127.0.0.1:0", **environment: str) -> Service:
    """A discovery process; not yet ready. The list of removed nodes in its home outlives it."""
    given = {"PUNA_HOME": str(home), "PUNA_DISCOVERY_LISTEN": listen, **environment}
    return await Service.start("discovery", environment=given)


async def start_host(environment: dict[str, str]) -> Service:
    """A host process; not yet ready."""
    module = "tests.integration.host.fake_host" if SCENARIO in environment else "runner"
    return await Service.start(module, "host", environment=environment)


@asynccontextmanager
async def running_node(
    directory: Path, models: Path, trust: Cluster | None = None, /, *, ready: str = "host.ready", **environment: str
) -> AsyncIterator[Node]:
    """Discovery and a host that has registered and has said `ready`; afterwards both are gone, and all runners too.

    With `trust` they are the node "a" of that cluster, and the caller has to act as its scheduler.
    """
    home = directory / "h"
    note_ram_speed(home)
    discovery_address = f"127.0.0.1:{free_port()}"  # a test may start it again there
    own, certified = {}, {}
    if trust is not None:
        own["PUNA_TRUST"], certified["PUNA_TRUST"] = str(trust.directory("discovery")), str(trust.directory("node/a"))
    discovery = await start_discovery(directory / "d", discovery_address, **own)
    await discovery.event("discovery.ready")
    given = {
        "PUNA_HOME": str(home),
        "PUNA_MODELS": str(models),
        "PUNA_NODE_LISTEN": "127.0.0.1:0",
        "PUNA_DISCOVERY_ADDRESS": discovery_address,
        **certified,
        **environment,
    }
    node = Node(
        home=home,
        models=models,
        environment=given,
        discovery=discovery,
        host=await start_host(given),
        discovery_address=discovery_address,
    )
    try:
        node.address = (await node.host.event(ready))["address"]
        yield node
    finally:
        await node.client.close()
        await node.host.end()
        await node.discovery.end()
        for pid in pids_below(home):
            os.kill(pid, signal.SIGKILL)


def pids_below(home: Path) -> list[int]:
    """Live processes whose command line names the home directory: runners of a host there."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if os.fsencode(home / "runners") in command:
                found.append(int(entry.name))
    return found


def environment_of(pid: int) -> set[str]:
    """Names of a process's environment."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return {entry.split(b"=")[0].decode() for entry in entries if entry}


def is_alive(pid: int) -> bool:
    """Return True if the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

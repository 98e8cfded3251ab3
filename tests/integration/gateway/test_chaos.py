"""Faults of a node, asked for at a gateway: proven, undone with their request, refused where they must not be."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from cli.commands.chaos import Order, carry_out
from cli.commands.keys import create
from cli.errors import CommandFailed
from cli.server import Server
from common.grpc.server import bind_server
from common.process_faults import process_state
from protos import cluster_pb2, discovery_pb2, host_pb2_grpc, scheduler_pb2
from runner.host.devices.devices import Devices
from runner.host.faults import NodeFaults
from runner.host.lending.tunnel_listener import TunnelListener
from runner.host.runners.device_users import DeviceUsers
from runner.host.runners.measurements import Measurements
from runner.host.runners.runner import HostRunner
from runner.host.runners.supervisor import RunnerSupervisor
from runner.host.servicer import HostServicer
from runner.host.states.peers import PeerStates
from runner.host.states.store import NodeStates
from tests.full_disk import small_disk
from tests.integration.gateway.conftest import Cluster, StartCluster
from tests.integration.gateway.scripted import ScriptedScheduler
from tests.waiting import until

PATH = "/puna/v1/chaos"
NODE, PLACEMENT = "node-1", "11111111-2222"
MIB = 2**20
ELSEWHERE = "192.0.2.77"  # for documentation: no machine has it (RFC 5737)
# A process whose thread "engine" waits, as one that computes would.
VICTIM = """
import threading
from runner.engine.threads.engine_thread import mark_engine_thread
def run():
    mark_engine_thread()
    print("ready", flush=True)
    threading.Event().wait()
threading.Thread(target=run, daemon=True).start()
input()
"""


@dataclass(eq=False)
class OneRunner:
    """As much of a runner as faults look at."""

    pid: int
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def record(self) -> cluster_pb2.RunnerRecord:
        return cluster_pb2.RunnerRecord(pid=self.pid)


@dataclass(eq=False, kw_only=True)
class SchedulerOfOneNode(ScriptedScheduler):
    """Its only node is where the faults happen."""

    node_address: str = ""

    async def ListNodes(  # noqa: N802
        self, request: scheduler_pb2.ListNodesRequest, context: Any
    ) -> discovery_pb2.Inventory:
        inventory = await super().ListNodes(request, context)
        node = inventory.nodes[0]
        node.id, node.address = NODE, self.node_address
        return inventory


@pytest.fixture
def victim() -> Iterator["subprocess.Popen[bytes]"]:
    child = subprocess.Popen([sys.executable, "-c", VICTIM], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    yield child
    child.kill()
    child.communicate()


@pytest.fixture
def breakable(
    start_cluster: StartCluster,
    victim: "subprocess.Popen[bytes]",
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., Any]:
    """Start a gateway and a node that it breaks. Clients send a key that may do so."""
    file = tmp_path / "keys.json"
    create({"owner": "ada", "tenant": "ada", "scopes": ["admin:cluster", "models:read"]}, file, as_json=True)
    key = json.loads(capsys.readouterr().out)["key"]

    @asynccontextmanager
    async def start(*, production_node: bool = False, has_keys: bool = True, **settings: Any) -> AsyncIterator[Cluster]:
        runners = {PLACEMENT: cast("HostRunner", OneRunner(victim.pid))}
        faults = NodeFaults(
            users=DeviceUsers(runners=runners),
            devices=cast("Devices", None),
            directories={"models": tmp_path / "disk"},
            is_production=production_node,
        )
        nothing = (cast("RunnerSupervisor", None), cast("Measurements", None), cast("TunnelListener", None))
        servicer = HostServicer(*nothing, faults, cast("NodeStates", None), cast("PeerStates", None))
        server = bind_server(
            f"unix:{tmp_path}/h",
            register=lambda server: host_pb2_grpc.add_HostServicer_to_server(servicer, server),
            services=[],
        )
        await server.start()
        try:
            scheduler = SchedulerOfOneNode(node_address=server.address)
            of_keys = {"api_keys_file": str(file)} if has_keys else {}
            async with start_cluster(scheduler=scheduler, **of_keys, **settings) as cluster:
                cluster.http.headers["authorization"] = f"Bearer {key}"
                yield cluster
        finally:
            await server.stop(1)

    return start


def body(fault: str, **more: Any) -> dict[str, Any]:
    return {"fault": fault, "node": NODE, "target": PLACEMENT, **more}


def state_of(pid: int, thread: str = "") -> str:
    """The state of a process, or of its thread of this name."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        if thread and (task / "comm").read_text().strip() == thread:
            return process_state(pid, int(task.name))
    return process_state(pid)


@pytest.mark.parametrize(("fault", "thread", "state"), [("stop", "", "T"), ("block", "engine", "t")])
async def test_what_stands_still_goes_on_when_the_client_leaves(
    breakable: Callable[..., Any], victim: "subprocess.Popen[bytes]", fault: str, thread: str, state: str
) -> None:
    async with breakable() as cluster:
        async with cluster.http.stream("POST", PATH, json=body(fault, duration_s=600)) as answer:
            assert answer.status_code == 200
            first = json.loads(await anext(answer.aiter_lines()))
            assert (first["status"], PLACEMENT in first["text"]) == ("injected", True)
            assert state_of(victim.pid, thread) == state
        await until(lambda: state_of(victim.pid, thread) == "S", what="it goes on")


async def test_a_fault_ends_after_its_time_and_says_so(
    breakable: Callable[..., Any], victim: "subprocess.Popen[bytes]"
) -> None:
    async with breakable() as cluster:
        answer = await cluster.http.post(PATH, json=body("stop", duration_s=0.3))
        assert [json.loads(line)["status"] for line in answer.text.splitlines()] == ["injected", "ended"]
        await until(lambda: state_of(victim.pid) == "S", what="it goes on")


async def test_a_full_disk_has_room_again_afterwards(breakable: Callable[..., Any], tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", megabytes=16) as disk:

        def free() -> int:
            room = os.statvfs(disk.path)
            return room.f_frsize * room.f_bavail

        before = free()
        async with breakable() as cluster:
            wanted = body("disk", leave_bytes=2 * MIB, duration_s=600) | {"target": "models"}
            async with cluster.http.stream("POST", PATH, json=wanted) as answer:
                assert json.loads(await anext(answer.aiter_lines()))["status"] == "injected"
                assert free() <= 3 * MIB
            await until(lambda: free() == before, what="the room is back")


async def test_the_command_kills_a_runner_and_names_what_it_did(
    breakable: Callable[..., Any], victim: "subprocess.Popen[bytes]"
) -> None:
    async with breakable() as cluster:
        answer = await cluster.http.post(PATH, json=body("kill"))
        assert json.loads(answer.text.splitlines()[0])["text"] == f"the runner of placement {PLACEMENT} is killed"
        assert await asyncio.to_thread(victim.wait, 20) == -9


@pytest.mark.parametrize(
    ("asked", "status", "text"),
    [
        (body("kill") | {"node": "elsewhere"}, 404, "elsewhere"),
        (body("kill") | {"target": "another"}, 503, "another"),
        (body("disk"), 400, "models"),
        (body("cut"), 400, "their own machine"),
        (body("clock"), 400, "their own machine"),
        (body("explode"), 400, "fault"),
        (body("stop", duration_s=3601), 400, "duration_s"),
        ({"fault": "kill", "node": NODE}, 400, "target"),
    ],
)
async def test_what_makes_no_sense_is_refused(
    breakable: Callable[..., Any], victim: "subprocess.Popen[bytes]", asked: dict[str, Any], status: int, text: str
) -> None:
    async with breakable() as cluster:
        answer = await cluster.http.post(PATH, json=asked)
        assert (answer.status_code, text in answer.text) == (status, True), answer.text
        assert state_of(victim.pid) == "S"


@pytest.mark.parametrize("settings", [{"production_node": True}, {"production": True}])
async def test_nothing_that_is_marked_as_production_is_broken(
    breakable: Callable[..., Any], victim: "subprocess.Popen[bytes]", settings: dict[str, bool]
) -> None:
    async with breakable(**settings) as cluster:
        answer = await cluster.http.post(PATH, json=body("kill"))
        assert (answer.status_code, "PUNA_PRODUCTION" in answer.text) == (403, True), answer.text
        assert state_of(victim.pid) == "S"


async def test_a_gateway_without_keys_breaks_nothing(
    breakable: Callable[..., Any], victim: "subprocess.Popen[bytes]"
) -> None:
    async with breakable(has_keys=False) as cluster:
        answer = await cluster.http.post(PATH, json=body("kill"))
        assert (answer.status_code, "admin:cluster" in answer.text) == (403, True), answer.text
        assert state_of(victim.pid) == "S"


async def test_a_service_is_only_broken_where_it_runs(breakable: Callable[..., Any], tmp_path: Path) -> None:
    order = Order(fault="stop", target="redis", node="", duration_s=1, leave_bytes=0)
    async with breakable() as cluster:
        with pytest.raises(CommandFailed, match="no redis runs in"):
            await asyncio.to_thread(
                carry_out,
                Server(cluster.url, cluster.http.headers["authorization"].removeprefix("Bearer ")),
                order,
                home=tmp_path,
                say=print,
            )


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """An address that this machine has for now, so that packets to it can be sent without any network."""
    if os.geteuid() != 0 or shutil.which("iptables") is None:
        pytest.skip("links are broken by root with iptables (make deps-system)")
    subprocess.run(["ip", "address", "replace", f"{ELSEWHERE}/32", "dev", "lo"], check=True)
    yield ELSEWHERE
    subprocess.run(["ip", "address", "delete", f"{ELSEWHERE}/32", "dev", "lo"], check=True)


def passes(address: str, *, kib: int = 1) -> bool:
    """Return False if the kernel drops a datagram of so many."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        try:
            for _ in range(kib):
                sender.sendto(bytes(1024), (address, 9))
        except PermissionError:
            return False
    return True


async def begun(cluster: Cluster, order: Order, home: Path) -> "asyncio.subprocess.Process":
    """Begin a command in a process of its own."""
    key = cluster.http.headers["authorization"].removeprefix("Bearer ")
    script = f"""
from pathlib import Path
from cli.commands.chaos import Order, carry_out
from cli.server import Server
say = lambda text: print(text, flush=True)
carry_out(Server({cluster.url!r}, {key!r}), {order!r}, home=Path({str(home)!r}), say=say)
"""
    command = [sys.executable, "-c", script]
    return await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.parametrize(("fault", "little"), [("cut", False), ("slow", True)])
async def test_a_link_is_broken_until_the_command_ends(
    breakable: Callable[..., Any], tmp_path: Path, elsewhere: str, fault: str, *, little: bool
) -> None:
    order = Order(fault=fault, target=elsewhere, node="", duration_s=600, leave_bytes=0, rate_bytes_s=1024)
    async with breakable() as cluster:
        child = await begun(cluster, order, tmp_path)
        assert child.stdout is not None
        said = (await child.stdout.readline()).decode()
        assert said.startswith(f"the link to {elsewhere} ")
        assert (passes(elsewhere), passes(elsewhere, kib=4096)) == (little, False)
        child.kill()  # it has no time to undo anything
        await child.communicate()
        await until(lambda: passes(elsewhere, kib=4096), what="packets pass again")


@pytest.mark.parametrize(
    ("target", "said"), [("127.0.0.1", "is on this machine"), ("no such node", "no node on another machine")]
)
async def test_a_link_that_does_not_leave_this_machine_is_not_broken(
    breakable: Callable[..., Any], tmp_path: Path, elsewhere: str, target: str, said: str
) -> None:
    order = Order(fault="cut", target=target, node="", duration_s=1, leave_bytes=0)
    async with breakable() as cluster:
        _, errors = await (await begun(cluster, order, tmp_path)).communicate()
        assert said in errors.decode()
        answer = await cluster.http.post(PATH, json=body("cut", target=elsewhere))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "node")

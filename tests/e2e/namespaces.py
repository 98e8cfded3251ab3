"""Machines on one machine: network namespaces on a bridge, each with a host and devices of its own. Needs root."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from cli.cluster.plan import embedded_redis_server
from tests.known_speed import note_ram_speed
from tests.limited_device import LimitedDevice, limited_device
from tests.ports import free_number, free_port
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
START_DEADLINE_S = 180.0  # three hosts test their devices while other tests take the processors
STOP_DEADLINE_S = 40.0
# The same on every machine: names of devices must not be mixed up.
DEVICE_PORTS = (5001, 5002)
HOST_PORT, DISCOVERY_PORT, TUNNEL_PORT = 7603, 7601, 7605
# Options with which no answer of a model of 1024 tokens (`tools.model_zoo`) ends before it is as long as it may be:
# a bias against its control tokens, and a penalty without which it might loop.
ENDLESS: Mapping[str, Any] = {"logit_bias": {str(token): -100 for token in range(1011, 1024)}, "repeat_penalty": 1.5}


def missing() -> str:
    """Describe the reason why namespaces cannot be made on this machine; empty if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "iproute2 is not installed (make deps-system)"
    probe = f"puna-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        return f"no network namespaces here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "delete", probe], check=False)
    return ""


@dataclass(kw_only=True)
class Machine:
    """One namespace."""

    name: str  # also the node's id
    namespace: str
    link: str  # our end of its cable
    address: str
    devices: list[LimitedDevice] = field(default_factory=list)
    host: "subprocess.Popen[bytes] | None" = None

    def run(self, command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        """A command on this machine."""
        inside = ["ip", "netns", "exec", self.namespace, *command]
        return subprocess.run(inside, capture_output=True, text=True, check=False, cwd=ROOT)

    def cut_off(self) -> None:
        """Pull the cable."""
        _ip("link", "set", self.link, "down")

    def reconnect(self) -> None:
        """Put it back."""
        _ip("link", "set", self.link, "up")

    def listening_ports(self, *, loopback: bool) -> set[int]:
        """TCP ports that somebody on this machine listens on, on loopback or beyond it."""
        table = self.run(["cat", "/proc/net/tcp", "/proc/net/tcp6"]).stdout.splitlines()
        found = set()
        for fields in (line.split() for line in table):
            if fields[3] != "0A":
                continue
            host, _, port = fields[1].partition(":")
            private = host.endswith("0100007F") or host == "00000000000000000000000001000000"
            if private == loopback:
                found.add(int(port, 16))
        return found

    def can_connect(self, address: str, port: int) -> bool:
        """Return True if a process of this machine gets a TCP connection there."""
        code = f"import socket; socket.create_connection(({address!r}, {port}), 1).close()"
        return self.run([sys.executable, "-c", code]).returncode == 0


@dataclass(kw_only=True)
class Machines:
    """A cluster: the control plane here, a host on each machine."""

    url: str
    machines: dict[str, Machine]
    directory: Path
    discovery_address: str = ""

    def generate(self, model: str, **options: Any) -> httpx.Response:
        """Greedy text of a model, whole."""
        return httpx.post(f"{self.url}/api/generate", json=request_body(model, **options), timeout=240)

    def answer(self, model: str, **options: Any) -> httpx.Response:
        """The same, asked again while the scheduler of a busy machine is kept from its store, as clients do."""
        answers: list[httpx.Response] = []

        def came() -> bool:
            answers.append(self.generate(model, **options))
            return "state store unreachable" not in answers[-1].text

        wait_until(came, deadline_s=60, what="the scheduler has its store")
        return answers[-1]

    def nodes(self) -> list[dict[str, Any]]:
        """As the cluster shows them; none while nobody answers."""
        with suppress(httpx.TransportError):
            answer = httpx.get(f"{self.url}/puna/v1/nodes", timeout=60)
            if answer.status_code == 200:
                nodes: list[dict[str, Any]] = answer.json()["nodes"]
                return nodes
        return []

    def runners(self) -> list[tuple[str, dict[str, Any]]]:
        """Every live runner with its node; those that failed are shown for a while longer."""
        found = [(node["id"], runner) for node in self.nodes() for runner in node.get("runners", [])]
        return [(node, runner) for node, runner in found if runner["state"] != "error"]


def request_body(model: str, **options: Any) -> dict[str, Any]:
    """Build the body that `generate` posts."""
    stream = options.pop("stream", False)
    return {
        "model": model,
        "prompt": "The quick brown fox",
        "raw": True,
        "stream": stream,
        "options": {"temperature": 0, "repeat_penalty": 1.0, "num_predict": 16, **options},
    }


@contextmanager
def running_machines(directory: Path, models: Path, *, names: Sequence[str], device_mib: float) -> Iterator[Machines]:
    """Everything up, every device tested; afterwards nothing is left."""
    with ExitStack() as stack:
        own_address, machines = stack.enter_context(cabled(names))
        found = list(machines.values())
        cluster = Machines(url="", machines=machines, directory=directory)
        _start_control_plane(stack, cluster, f"{own_address}:{DISCOVERY_PORT}", {})
        with ThreadPoolExecutor() as starters:  # each start is a Python interpreter with the engine
            lent = [
                starters.submit(
                    stack.enter_context, limited_device(mib=device_mib, port=port, namespace=machine.namespace)
                )
                for machine in found
                for port in DEVICE_PORTS
            ]
            for number, device in enumerate(lent):
                found[number // len(DEVICE_PORTS)].devices.append(device.result())
        for machine in found:
            _start_host(stack, cluster, machine, models)
        wait_until(lambda: _all_usable(cluster), deadline_s=START_DEADLINE_S, what="every device is tested")
        yield cluster


@contextmanager
def cabled(names: Sequence[str]) -> Iterator[tuple[str, dict[str, Machine]]]:
    """Machines on a bridge on which nothing runs, and the address of this one there."""
    with ExitStack() as stack:
        network = f"10.213.{free_number('network', range(1, 250))}"
        bridge = stack.enter_context(bridge_network(f"pnbr{os.getpid() % 100_000}", f"{network}.1"))
        found = [
            stack.enter_context(machine_on(name, bridge, number, network)) for number, name in enumerate(names, start=1)
        ]
        yield f"{network}.1", {one.name: one for one in found}


@contextmanager
def running_hosts(
    directory: Path,
    models: Path | Mapping[str, Path],
    *,
    names: Sequence[str],
    device_mib: float,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Machines]:
    """The same without namespaces: hosts on loopback, with one device each, and a store each if `models` says so."""
    with ExitStack() as stack:
        found = [Machine(name=name, namespace="", link="", address="") for name in names]
        cluster = Machines(url="", machines={one.name: one for one in found}, directory=directory)
        _start_control_plane(stack, cluster, f"127.0.0.1:{free_port()}", {})
        for machine in found:
            machine.devices.append(stack.enter_context(limited_device(mib=device_mib)))
            own = models if isinstance(models, Path) else models[machine.name]
            _start_host(stack, cluster, machine, own, **(environment or {}))
        wait_until(lambda: _all_usable(cluster), deadline_s=START_DEADLINE_S, what="every device is tested")
        yield cluster


@contextmanager
def running_stores(
    directory: Path, *, names: Sequence[str], models: Path | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[Machines]:
    """Hosts on loopback without devices of their own, each with models of its own in `<directory>/<name>-models`.

    `models`: one directory for all of them instead. `settings`: of every service.
    """
    with ExitStack() as stack:
        found = [Machine(name=name, namespace="", link="", address="") for name in names]
        cluster = Machines(url="", machines={one.name: one for one in found}, directory=directory)
        _start_control_plane(stack, cluster, f"127.0.0.1:{free_port()}", settings or {})
        for machine in found:
            _start_host(stack, cluster, machine, models or directory / f"{machine.name}-models", **(settings or {}))
        wait_until(lambda: len(cluster.nodes()) == len(found), deadline_s=START_DEADLINE_S, what="every host is there")
        yield cluster


def _all_usable(cluster: Machines) -> bool:
    usable = [
        device
        for node in cluster.nodes()
        for device in node["devices"]
        if device["id"].startswith("RPC:") and device.get("state") == "ok"
    ]
    return len(usable) == sum(len(machine.devices) for machine in cluster.machines.values())


def _start_control_plane(stack: ExitStack, cluster: Machines, discovery: str, more: Mapping[str, str]) -> None:
    redis_port, scheduler_port, port = free_port(), free_port(), free_port()
    redis = [str(embedded_redis_server()), "--port", str(redis_port), "--bind", "127.0.0.1", "--save", ""]
    _spawn(stack, cluster, "redis", redis, {})
    cluster.discovery_address = discovery
    common = {"PUNA_DISCOVERY_ADDRESS": discovery, "PUNA_PLAINTEXT": "1", **more}
    own = {"PUNA_DISCOVERY_LISTEN": discovery, "PUNA_HOME": str(cluster.directory / "discovery")}
    _spawn(stack, cluster, "discovery", _python("discovery"), {**common, **own})
    scheduler = f"127.0.0.1:{scheduler_port}"
    settings = {
        "PUNA_SCHEDULER_LISTEN": scheduler,
        "PUNA_REDIS_URL": f"redis://127.0.0.1:{redis_port}/0",
        "PUNA_NUM_PARALLEL": "1",
        **more,
    }
    _spawn(stack, cluster, "scheduler", _python("scheduler"), {**common, **settings})
    gateway = {"PUNA_SCHEDULER_ADDRESS": scheduler, "PUNA_HOST": f"127.0.0.1:{port}", **more}
    _spawn(stack, cluster, "gateway", _python("gateway"), {**gateway, "PUNA_GRPC_HOST": f"127.0.0.1:{free_port()}"})
    cluster.url = f"http://127.0.0.1:{port}"


def _start_host(stack: ExitStack, cluster: Machines, machine: Machine, models: Path, **more: str) -> None:
    note_ram_speed(cluster.directory / machine.name)
    environment = {
        "PUNA_HOME": str(cluster.directory / machine.name),
        "PUNA_MODELS": str(models),
        "PUNA_NODE_ID": machine.name,
        "PUNA_NODE_LISTEN": "127.0.0.1:0",
        "PUNA_DISCOVERY_ADDRESS": cluster.discovery_address,
        "PUNA_RPC": "1",
        "PUNA_RPC_DEVICES": ",".join(device.address for device in machine.devices),
        # A test of devices that runs out of time is tried again a minute later.
        "PUNA_PROBE_TIMEOUT_S": "120",
        **more,
    }
    inside: list[str] = []
    if machine.namespace:
        inside = ["ip", "netns", "exec", machine.namespace]
        environment |= {
            "PUNA_PLAINTEXT": "1",
            "PUNA_NODE_LISTEN": f"{machine.address}:{HOST_PORT}",
            "PUNA_RUNNER_LISTEN": f"{machine.address}:0",
            "PUNA_TUNNEL_LISTEN": f"{machine.address}:{TUNNEL_PORT}",
        }
    machine.host = _spawn(stack, cluster, machine.name, [*inside, *_python("runner", "host")], environment)


def _spawn(
    stack: ExitStack, cluster: Machines, name: str, command: Sequence[str], environment: dict[str, str]
) -> "subprocess.Popen[bytes]":
    log = stack.enter_context((cluster.directory / f"{name}.log").open("ab"))
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), **environment}, stdout=log, stderr=log
    )
    stack.callback(_end, process)
    return process


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(STOP_DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _python(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", module, *arguments]


@contextmanager
def bridge_network(name: str, address: str) -> Iterator[str]:
    _ip("link", "add", name, "type", "bridge")
    try:
        _ip("addr", "add", f"{address}/24", "dev", name)
        _ip("link", "set", name, "up")
        yield name
    finally:
        _ip("link", "delete", name)


@contextmanager
def machine_on(name: str, bridge: str, number: int, network: str) -> Iterator[Machine]:
    namespace, link, address = f"{bridge}-{name}", f"{bridge}v{number}", f"{network}.{10 + number}"
    _ip("netns", "add", namespace)
    try:
        _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        _ip("link", "set", link, "master", bridge, "up")
        for part in (("link", "set", "lo", "up"), ("addr", "add", f"{address}/24", "dev", "eth0")):
            _ip("-n", namespace, *part)
        _ip("-n", namespace, "link", "set", "eth0", "up")
        yield Machine(name=name, namespace=namespace, link=link, address=address)
    finally:
        _ip("netns", "delete", namespace)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"

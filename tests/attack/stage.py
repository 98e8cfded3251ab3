"""Cluster under attack: two machines as network namespaces, and the attacker on the same network."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from common.trust.authority import Authority
from common.trust.certificates import LIFE_S
from common.trust.roles import parse_role
from protos import cluster_pb2, discovery_pb2
from tests.attack.calls import Caller, exchange
from tests.e2e.namespaces import DISCOVERY_PORT, HOST_PORT, Machine, bridge_network, machine_on
from tests.ports import free_number
from tests.waiting import Stopwatch, next_look, wait_until

ROOT = Path(__file__).resolve().parents[2]
START_S = 120.0
DEADLINE_S = 240.0  # of one attack
STOP_S = 80.0
REGISTRY_PORT = 8080
METADATA = "169.254.169.254"
# Room for uploads: the host leaves 256 MiB of it free.
STORE_MIB = 700
ISSUED = ("discovery", "scheduler", "gateway", "operator", "node/a", "node/b", "node/c")
QUESTION = {"model": "demo", "stream": False, "messages": [{"role": "user", "content": "What is Puna?"}]}


class NotRunnable(Exception):
    """An attack needs what this machine lacks; the text says what."""


class NoSurface(NotRunnable):
    """An attack is on something that this tree does not have; the text says what."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one attack."""

    damage: bool
    seen: str


Act = Callable[["Stage"], Awaitable[Outcome]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """An attack, and what the table of the report says about it."""

    name: str
    row: str  # of the threat model
    input: str
    act: Act
    breaks: bool = False  # what it damages needs a new cluster
    before: str = ""  # why older commits show no damage


@dataclass(kw_only=True)
class Stage:
    """A running cluster. `tree` has its code; the attacker's is that of this process."""

    tree: Path
    directory: Path
    has_certificates: bool
    path: str  # PYTHONPATH of the cluster
    address: str = ""  # of the attacker
    victim: str = "b"  # node that attackers claim to be
    life_s: float = LIFE_S  # of certificates
    settings: dict[str, str] = field(default_factory=dict)  # more of them
    first: Machine = field(init=False)
    second: Machine = field(init=False)
    _up: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://{self.first.address}:11434"

    @property
    def discovery(self) -> str:
        return f"{self.first.address}:{DISCOVERY_PORT}"

    @property
    def hosts(self) -> tuple[str, str]:
        return f"{self.first.address}:{HOST_PORT}", f"{self.second.address}:{HOST_PORT}"

    @property
    def registry(self) -> str:
        """Host and port under which nodes ask the attacker's registry."""
        return f"{self.address}:{REGISTRY_PORT}"

    def store_free_bytes(self) -> int:
        """Return the free space of the first machine's models."""
        return shutil.disk_usage(self.home(self.first) / "models").free

    @property
    def inside(self) -> list[str]:
        """Command that runs another one in the network of the first machine."""
        return ["ip", "netns", "exec", self.first.namespace]

    @property
    def trust(self) -> Path:
        return self.directory / "trust"

    @property
    def deployed(self) -> Path:
        return self.directory / "deployed"

    def home(self, machine: Machine) -> Path:
        return self.directory / machine.name

    def caller(self, role: str, **life: float) -> Caller:
        """Return the holder of a certificate of this cluster."""
        if not self.has_certificates:
            raise NoSurface("there are no certificates")
        directory = self.trust / role
        if not directory.exists() or life:
            directory = Authority(self.trust, **_clock(life)).issue(parse_role(role), **_life(life))
        return Caller.of(directory)

    def insider(self, role: str) -> Caller | None:
        """Return the holder of a role; nothing but the network is needed where there are no certificates."""
        return self.caller(role) if self.has_certificates else None

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=60, trust_env=False)

    async def inventory(self) -> discovery_pb2.Inventory:
        """Return the inventory as an operator sees it."""
        answer = await exchange(
            self.discovery, "/puna.v1.Discovery/WatchInventory", b"", self.insider("operator"), within_s=20
        )
        return discovery_pb2.Inventory.FromString(answer.first)

    async def node(self, name: str) -> cluster_pb2.Node:
        """Return a node that has reported its devices."""
        for _ in range(200):
            found = [node for node in (await self.inventory()).nodes if node.id == name and node.devices]
            if found:
                return found[0]
            await next_look(0.1)
        raise AssertionError(f"node {name} is not registered")

    async def runner(self) -> cluster_pb2.RunnerRecord:
        """Return the runner of the demo model; it is loaded if need be."""
        async with self.client() as client:
            (await client.post("/api/chat", json=QUESTION)).raise_for_status()
        for node in (await self.inventory()).nodes:
            for runner in node.runners:
                if runner.address and runner.model_name.startswith("demo"):
                    return runner
        raise AssertionError("no runner of the demo model")

    async def answers(self, within_s: float) -> bool:
        """Return True if the demo model answers another user in time."""
        try:
            async with asyncio.timeout(within_s), self.client() as client:
                return (await client.post("/api/chat", json=QUESTION)).status_code == httpx.codes.OK
        except (TimeoutError, httpx.HTTPError):
            return False

    @contextmanager
    def canary(self) -> Iterator[Path]:
        """Let the first machine have a metadata service, as clouds do; yields its log, a line for each request."""
        log, inside = self.directory / "canary.log", self.inside
        subprocess.run([*inside, "ip", "addr", "add", f"{METADATA}/32", "dev", "lo"], check=True)
        (self.directory / "empty").mkdir(exist_ok=True)
        with log.open("wb") as output:
            serving = [*(sys.executable, "-m", "http.server", "80"), "--directory", str(self.directory / "empty")]
            process = subprocess.Popen([*inside, *serving], stdout=output, stderr=output)
        try:
            wait_until(lambda: _connects(inside, METADATA, 80), deadline_s=START_S, what="the canary listens")
            yield log
        finally:
            process.kill()
            process.wait()
            subprocess.run([*inside, "ip", "addr", "del", f"{METADATA}/32", "dev", "lo"], check=True)

    def attacker_environment(self) -> dict[str, str]:
        """Return the environment of a host of the attacker's, who has no certificate, and consents to plaintext."""
        environment = self.environment(self.second)
        environment.pop("PUNA_TRUST", None)
        environment.pop("PUNA_AUDIT_LOG", None)
        return environment | ({"PUNA_PLAINTEXT": "1"} if self.has_certificates else {})

    def environment(self, machine: Machine) -> dict[str, str]:
        found = {name: value for name, value in os.environ.items() if not name.startswith("PUNA_")}
        found |= {
            "PYTHONPATH": self.path,
            "PUNA_NODE_ID": machine.name,
            "PUNA_CONTEXT_LENGTH": "1024",
            "PUNA_REGISTRIES": f"http://{self.registry}",
            # The gateway is published without keys.
            ("PUNA_OPEN_GATEWAY" if self.has_certificates else "PUNA_INSECURE"): "1",
        }
        if machine is self.first:
            found |= {"PUNA_HOST": f"{machine.address}:11434"}
        if self.has_certificates:
            found |= {"PUNA_TRUST": str(self.deployed), "PUNA_AUDIT_LOG": str(self.directory / "audit")}
        return found | self.settings

    def start(self) -> None:
        """Start both machines, empty."""
        for machine in (self.first, self.second):
            home = self.home(machine)
            (home / "models").mkdir(parents=True)
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={STORE_MIB}m", "tmpfs", str(home / "models")], check=True
            )
        if self.has_certificates:
            self.issue()
        self._spawn(self.first, "--address", self.first.address)
        wait_until(self._admits, deadline_s=START_S, what="the first machine serves")
        self._spawn(self.second, "--join", self.first.address, "--address", self.second.address)
        log = self.home(self.second).with_suffix(".log")
        wait_until(lambda: "Ctrl-C" in log.read_text(), deadline_s=START_S, what="the second machine has joined")

    def issue(self) -> None:
        """Make the authority, and the certificates of all processes."""
        authority = Authority(self.trust)
        if authority.exists:
            return
        authority.create()
        for role in ISSUED:
            authority.issue(parse_role(role), life_s=self.life_s)
            # `puna up` renews only what lies beside the authority; there, the caller of this class does.
            deployed = self.deployed / role
            deployed.parent.mkdir(parents=True, exist_ok=True)
            deployed.symlink_to(self.trust / role)

    def stop(self) -> None:
        """Stop both, and remove what they kept."""
        for process in reversed(self._up):
            process.send_signal(signal.SIGINT)
        for process in self._up:
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._up.clear()
        for machine in (self.first, self.second):
            home = self.home(machine)
            subprocess.run(["umount", "--lazy", str(home / "models")], check=False, capture_output=True)
            shutil.rmtree(home, ignore_errors=True)

    async def restart(self) -> None:
        """Replace a damaged cluster."""
        await asyncio.to_thread(self.stop)
        await asyncio.to_thread(self.start)

    def _spawn(self, machine: Machine, *arguments: str) -> None:
        home = self.home(machine)
        command = [*(sys.executable, "-m", "cli.main", "up", "--home", str(home)), *arguments]
        with home.with_suffix(".log").open("wb") as log:
            self._up.append(
                subprocess.Popen(
                    ["ip", "netns", "exec", machine.namespace, *command],
                    cwd=self.tree, env=self.environment(machine), stdout=log, stderr=log, start_new_session=True,
                )
            )  # fmt: skip

    def _admits(self) -> bool:
        log = self.home(self.first).with_suffix(".log").read_text()
        assert self._up[0].poll() is None, log
        try:
            answer = httpx.get(f"{self.url}/api/tags", timeout=10, trust_env=False)
        except httpx.HTTPError:
            return False
        return answer.status_code == httpx.codes.OK and bool(answer.json()["models"])


async def attack_all(stage: Stage, chosen: Sequence[Attack], found: dict[str, dict[str, Any]], when: str) -> None:
    """Carry out attacks one after the other, and add their results to the rows of their names as `when`."""
    for attack in chosen:
        watch = Stopwatch()
        damage: bool | None = None
        try:
            async with asyncio.timeout(DEADLINE_S):
                outcome = await attack.act(stage)
            damage, seen = outcome.damage, outcome.seen
        except NoSurface as error:
            seen = f"no such surface: {error}"
        except NotRunnable as error:
            seen = f"not runnable: {error}"
        except Exception as error:  # noqa: BLE001  # an attack that fails in another way says so in its row
            seen = f"not runnable: {type(error).__name__}: {error}"
        seen = seen.replace(str(stage.directory), "…")
        found[attack.name][when] = {"damage": damage, "seen": seen, "seconds": round(watch.wall_s, 1)}
        word = {True: "DAMAGE", False: "ok", None: "-"}[damage]
        print(f"{when:6} {word:6} {attack.row} {attack.name}: {seen}", flush=True)
        if attack.breaks and damage is not False and attack is not chosen[-1]:
            await stage.restart()


def _connects(inside: Sequence[str], address: str, port: int) -> bool:
    """Return True if a process there gets a TCP connection."""
    code = f"import socket; socket.create_connection(({address!r}, {port}), 1).close()"
    return subprocess.run([*inside, sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def _clock(life: dict[str, float]) -> dict[str, Any]:
    ago_s = life.get("ago_s", 0.0)
    return {"wall_unix_s": lambda: time.time() - ago_s} if ago_s else {}


def _life(life: dict[str, float]) -> dict[str, float]:
    return {"life_s": life["life_s"]} if "life_s" in life else {}


@contextmanager
def staged(
    tree: Path, directory: Path, *, has_certificates: bool = True, more_path: str = "", **more: Any
) -> Iterator[Stage]:
    """Make the network and start the cluster of a tree; nothing is left afterwards."""
    with ExitStack() as stack:
        network = f"10.213.{free_number('network', range(1, 250))}"
        bridge = stack.enter_context(bridge_network(f"pnat{os.getpid() % 100_000}", f"{network}.1"))
        stage = Stage(
            tree=tree,
            directory=directory,
            has_certificates=has_certificates,
            path=":".join(filter(None, (str(tree), more_path))),
            address=f"{network}.1",
            **more,
        )
        stage.first, stage.second = (
            stack.enter_context(machine_on(name, bridge, number, network)) for number, name in enumerate("ab", 1)
        )
        stack.callback(stage.stop)
        stage.start()
        yield stage

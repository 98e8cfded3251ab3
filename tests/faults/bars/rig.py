"""A cluster whose processes are started, killed, stopped and replaced one by one."""

import asyncio
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import redis

from cli.cluster.plan import embedded_redis_server
from cli.commands.keys import create
from tests.cluster import metric_sum
from tests.faults.faults import process_state
from tests.known_speed import note_ram_speed
from tests.ports import free_port
from tests.waiting import Stopwatch, next_look, wait_until

ROOT = Path(__file__).resolve().parents[3]
DEMO = ROOT / "models" / "demo.gguf"
MODEL = "demo"
COLD = "cold"  # loaded and unloaded to see whether the scheduler commands
START_S_MAX = 90.0
STOP_S_MAX = 40.0
LOGGED_S_MAX = 30.0


@dataclass(frozen=True, slots=True)
class Place:
    """Place of a process: an address and, with a namespace, a machine of its own."""

    address: str = "127.0.0.1"
    namespace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Command of a process. `port` is the one that others dial."""

    module: Sequence[str]
    environment: dict[str, str]
    port: int
    place: Place


@dataclass(kw_only=True)
class Rig:
    """Redis, discovery, schedulers, gateways and hosts, by the names "scheduler-1", "gateway-0", "host-a", ..."""

    directory: Path
    services: dict[str, Service] = field(default_factory=dict)
    running: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    roots: dict[str, Path] = field(default_factory=dict)  # place of its packages by service; without: this tree
    key: str = "none"  # of an operator, where keys are needed

    def start(self, name: str, **environment: str) -> "subprocess.Popen[bytes]":
        """Start a service; its log goes on where it ended."""
        service, root = self.services[name], self.roots.get(name, ROOT)
        inside = ["ip", "netns", "exec", service.place.namespace] if service.place.namespace else []
        command = [*inside, *service.module]
        outer = {key: value for key, value in os.environ.items() if not key.startswith("PUNA_")}
        with (self.directory / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                command,
                cwd=root,
                env={**outer, "PYTHONPATH": str(root), **service.environment, **environment},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self.running[name]

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> bool:
        """Send a signal that ends a service; return True once the kernel says that it has ended."""
        process = self.running[name]
        process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S_MAX)
        return process_state(process.pid) in ("", "Z", "X")

    def address(self, name: str) -> str:
        service = self.services[name]
        return f"{service.place.address}:{service.port}"

    def gateways(self, *, without: Collection[str] = ()) -> list[tuple[str, int]]:
        names = [name for name in self.services if name.startswith("gateway") and name not in without]
        return [(self.services[name].place.address, self.services[name].port) for name in names]

    @property
    def url(self) -> str:
        return f"http://{self.address('gateway-0')}"

    def events(self, name: str, event: str) -> list[dict[str, Any]]:
        """Log lines of a service with this event."""
        found = []
        for line in (self.directory / f"{name}.log").read_text(errors="replace").splitlines():
            if f'"{event}"' in line and line.startswith("{"):
                entry = json.loads(line)
                if entry.get("event") == event:
                    found.append(entry)
        return found

    def nodes(self) -> list[dict[str, Any]]:
        """Return them as the cluster shows them; none while it does not answer."""
        with suppress(httpx.TransportError, ValueError):
            answer = httpx.get(f"{self.url}/puna/v1/nodes", headers={"x-api-key": self.key}, timeout=5, trust_env=False)
            if answer.status_code == httpx.codes.OK:
                nodes: list[dict[str, Any]] = answer.json()["nodes"]
                return nodes
        return []

    async def retries(self) -> float:
        """Requests that the first gateway has sent a second time because a replica did not take them."""
        async with httpx.AsyncClient(trust_env=False, timeout=10) as client:
            page = (await client.get(f"{self.url}/metrics", headers={"x-api-key": self.key})).text
        return metric_sum(page, "puna_gateway_retries_total")

    def runners(self, model: str = MODEL) -> dict[int, dict[str, Any]]:
        """Runners of a model that live, by process id."""
        found = [runner for node in self.nodes() for runner in node.get("runners", [])]
        return {one["pid"]: one for one in found if one["model"] == f"{model}:latest" and one["state"] != "error"}

    def serving(self, model: str = MODEL) -> set[int]:
        return {pid for pid, one in self.runners(model).items() if one["state"] in ("ready", "no_slots")}

    def over_promised(self) -> int:
        """Devices of which more bytes are promised than they have."""
        devices = [device for node in self.nodes() for device in node["devices"]]
        return sum(device["promised_bytes"] > device["total_bytes"] for device in devices)

    def has_started(self, replicas: int) -> bool:
        """Return True once so many replicas serve; fails as soon as a service has ended."""
        for name, process in self.running.items():
            if process.poll() is not None:
                log = self.directory / f"{name}.log"
                raise AssertionError(
                    f"{name} ended with {process.returncode}: {log.read_text(errors='replace')[-500:]}"
                )
        return len(self.serving()) >= replicas

    async def serves(self, count: int, *, without: frozenset[int] = frozenset(), model: str = MODEL) -> None:
        """Return once so many runners of a model serve; the event loop goes on."""
        what = f"{count} runners of {model} serve"
        condition = lambda: len(self.serving(model) - without) >= count  # noqa: E731
        await asyncio.to_thread(wait_until, condition, deadline_s=START_S_MAX, what=what)

    def stored(self, key: str) -> str:
        """Value of a key in Redis; empty: it has none, or Redis does not answer."""
        service = self.services["redis"]
        with suppress(redis.RedisError), redis.Redis(service.place.address, service.port) as client:
            return str((client.get(key) or b"").decode())
        return ""

    def leader(self) -> str:
        """Name of the scheduler that holds the lease; empty: none does."""
        address = self.stored("{sched}:leader").rpartition("@")[2]
        return next((name for name in self.services if self.address(name) == address), "")

    async def leads(self, *names: str) -> str:
        """Return the name of the leader once it is one of these."""
        condition = lambda: self.leader() in names  # noqa: E731
        await asyncio.to_thread(wait_until, condition, deadline_s=START_S_MAX, what=f"one of {names} leads")
        return self.leader()

    async def logged(self, name: str, event: str, count: int) -> None:
        """Return once a service has logged an event so many times."""
        condition = lambda: len(self.events(name, event)) >= count  # noqa: E731
        await asyncio.to_thread(wait_until, condition, deadline_s=START_S_MAX, what=f"{name} logs {event}")

    async def logged_after(self, name: str, event: str, after_unix_s: float) -> float:
        """Time at which a service first logged an event after that time; infinite: it did not within half a minute."""
        end_s = time.monotonic() + LOGGED_S_MAX
        while time.monotonic() < end_s:
            if later := [at_s for one in self.events(name, event) if (at_s := stamp(one)) >= after_unix_s]:
                return min(later)
            await next_look()
        return math.inf

    async def control(self, *, load: bool, timeout_s: float = 60.0) -> httpx.Response | None:
        """Load or unload the cold model; None: no answer."""
        body = {"model": COLD, "keep_alive": -1 if load else 0}
        async with httpx.AsyncClient(trust_env=False, timeout=timeout_s, headers={"x-api-key": self.key}) as client:
            with suppress(httpx.TransportError):
                return await client.post(f"{self.url}/api/generate", json=body)
        return None

    async def control_until(self, *, load: bool, deadline_s: float) -> None:
        """Ask for it again until it is done, as clients do."""
        watch = Stopwatch()
        while (answer := await self.control(load=load)) is None or answer.status_code != httpx.codes.OK:
            assert not watch.is_past(deadline_s), f"not within {deadline_s} s: the cold model is commanded: {answer}"
            await next_look(0.1)


def rss_bytes(rig: Rig, name: str) -> int:
    """Resident memory of a service."""
    status = Path(f"/proc/{rig.running[name].pid}/status").read_text()
    return 1024 * int(status.split("VmRSS:")[1].split()[0])


def stamp(event: dict[str, Any]) -> float:
    """Seconds since 1970 of a log line."""
    return datetime.fromisoformat(event["timestamp"]).timestamp()


def python(*words: str) -> list[str]:
    """Command of one of our modules."""
    return [sys.executable, "-m", *words]


def make_key(tenant: str, file: Path, *scopes: str) -> str:
    """Make a key of a tenant."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with redirect_stdout(StringIO()) as output:
        create({"owner": tenant, "tenant": tenant, "scopes": ["infer", "models:read", *scopes]}, file, as_json=True)
    return str(json.loads(output.getvalue())["key"])


@asynccontextmanager
async def running_rig(
    directory: Path,
    *,
    replicas: int = 1,
    schedulers: int = 1,
    gateways: int = 1,
    nodes: Sequence[str] = ("a",),
    fake: dict[str, Any] | None = None,
    places: Callable[[str], Place] = lambda _: Place(),
    store: Callable[[Rig], str] | None = None,
    roots: dict[str, Path] | None = None,
    unready: Sequence[str] = (),
    key: str = "none",
    **environment: str,
) -> AsyncIterator[Rig]:
    """Start everything but `unready`, wait until the replicas serve, and leave nothing behind; other clusters go on.

    `store` adds the services of the state store and returns its URL; without it there is one server, "redis".
    """
    placements = _write_files(directory, replicas)
    rig = Rig(directory=directory, roots=roots or {}, key=key)
    engine = {"PUNA_ENGINE": "fake", "PUNA_ENGINE_OPTIONS": json.dumps(fake)} if fake else {}
    common = {"PUNA_PLAINTEXT": "1", "PUNA_METRICS_LISTEN": "127.0.0.1:0", **engine, **environment}
    add_store = store or (lambda rig: add_redis(rig, "redis", places("redis")))
    _describe(rig, schedulers, gateways, nodes, places, add_store, placements, common)
    try:
        for name in rig.services:
            if name not in unready:
                rig.start(name)
        condition = lambda: rig.has_started(replicas)  # noqa: E731
        await asyncio.to_thread(wait_until, condition, deadline_s=START_S_MAX, what=f"{replicas} replicas serve")
        yield rig
    finally:
        await asyncio.shield(asyncio.to_thread(_end_all, rig))


def _write_files(directory: Path, replicas: int) -> Path:
    """Write the models and the policy of the warm one; return the file of policies."""
    models = directory / "models"
    models.mkdir(parents=True, exist_ok=True)
    for name in (MODEL, COLD):
        shutil.copyfile(DEMO, models / f"{name}.gguf")
    with (models / f"{COLD}.gguf").open("ab") as file:
        file.write(b"\0" * 4096)  # another digest: another model
    placements = directory / "placements.toml"
    placements.write_text(f'[models."{MODEL}"]\nreplicas_min = {replicas}\nreplicas_max = {replicas}\n')
    return placements


def add_redis(rig: Rig, name: str, place: Place, *more: str) -> str:
    """Add a server of Redis; return its URL."""
    server = rig.services[name] = Service(module=(), environment={}, port=free_port(), place=place)
    command = [str(embedded_redis_server()), "--port", f"{server.port}", "--bind", place.address, "--save", ""]
    command += ["--dir", str(rig.directory), "--protected-mode", "no", *more]
    rig.services[name] = replace(server, module=command)
    return f"redis://{rig.address(name)}/0"


def _describe(
    rig: Rig,
    schedulers: int,
    gateways: int,
    nodes: Sequence[str],
    places: Callable[[str], Place],
    add_store: Callable[[Rig], str],
    placements: Path,
    common: dict[str, str],
) -> None:
    def add(name: str, environment: Callable[[str], dict[str, str]], *module: str) -> str:
        place, port = places(name), free_port()
        listen = f"{place.address}:{port}"
        own = {**common, **environment(listen)}
        rig.services[name] = Service(module=module or python(name), environment=own, port=port, place=place)
        return listen

    store = add_store(rig)
    removed = str(rig.directory / "discovery")
    discovery = add("discovery", lambda listen: {"PUNA_DISCOVERY_LISTEN": listen, "PUNA_HOME": removed})
    dialled = [
        add(
            f"scheduler-{number}",
            lambda listen: {
                "PUNA_SCHEDULER_LISTEN": listen,
                "PUNA_DISCOVERY_ADDRESS": discovery,
                "PUNA_REDIS_URL": store,
                "PUNA_PLACEMENTS": str(placements),
                "PUNA_KEEP_ALIVE": "-1",
                "PUNA_NUM_PARALLEL": "8",
                "PUNA_CONTEXT_LENGTH": "1024",
            },
            *python("scheduler"),
        )
        for number in range(schedulers)
    ]
    for number in range(gateways):
        place = places(f"gateway-{number}")
        home = rig.directory / f"gateway-{number}"
        home.mkdir(exist_ok=True)
        add(
            f"gateway-{number}",
            lambda listen, place=place, home=home: {  # type: ignore[misc]
                "PUNA_HOST": listen,
                "PUNA_GRPC_HOST": f"{place.address}:{free_port()}",
                "PUNA_SCHEDULER_ADDRESS": ",".join(dialled),
                "PUNA_REDIS_URL": store,
                "PUNA_HOME": str(home),
                **({} if "PUNA_API_KEYS_FILE" in common else {"PUNA_OPEN_GATEWAY": "1"}),
            },
            *python("gateway"),
        )
    for node in nodes:
        place = places(f"host-{node}")
        note_ram_speed(rig.directory / f"host-{node}")
        remote = {"PUNA_RUNNER_LISTEN": f"{place.address}:0"} if place.namespace else {}
        add(
            f"host-{node}",
            lambda listen, node=node, remote=remote: {  # type: ignore[misc]
                "PUNA_HOME": str(rig.directory / f"host-{node}"),
                "PUNA_MODELS": str(rig.directory / "models"),
                "PUNA_NODE_ID": node,
                "PUNA_NODE_LISTEN": listen,
                "PUNA_DISCOVERY_ADDRESS": discovery,
                **remote,
            },
            *python("runner", "host"),
        )


def _end_all(rig: Rig) -> None:
    """End every service, the hosts first and by SIGTERM, so that they end their runners."""
    for name, process in rig.running.items():
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGTERM if name.startswith("host") else signal.SIGKILL)
    for process in rig.running.values():
        try:
            process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    _kill_left(rig.directory)


def _kill_left(directory: Path) -> None:
    """Kill runners that a killed host left, by the directory in their environment or arguments."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if str(directory).encode() in (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)

"""Attacks on the project of docker-compose.yml, from containers on its networks and from inside its containers.

`run` starts the project on an engine of its own, and in the network of a neighbour of the hosts this module again, with
a file that says what is where: there the attacks are carried out.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from common.sandbox.confinement import NETWORK_VERSION, landlock_version
from tests.attack import inputs, wires
from tests.attack.children import MODES, arguments_of, judged
from tests.attack.stage import METADATA, ROOT, Attack, NotRunnable, Outcome, Stage, attack_all
from tests.e2e.compose_cluster import (
    HOSTS,
    IMAGE,
    MODEL,
    ONE_EACH,
    PROJECT,
    ComposeCluster,
    build_images,
    running_cluster,
)
from tests.e2e.docker_engine import running_engine
from tests.integration.runner.test_sandbox import HOSTILE, WANTED, attempts_in

NETWORKS = ("edge", "control", "nodes", "monitoring")
PORTS = (6379, 7601, 7602, 7603, 7604, 9090, 9100, 11434, 11435)
DESCRIPTION = "docker-compose.yml with keys, two hosts and Prometheus; the attacker has containers on its networks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Containers of the project by service, and where they are in the engine's networks."""

    socket: str
    key: str
    trust: str  # a copy of the authority's files: certificates that an attacker may hold are issued with it
    own: str  # address of the attacker
    host_network: str  # namespace of the first host's container
    containers: dict[str, str]
    addresses: dict[str, dict[str, str]]  # by service and network
    passwords: dict[str, str]  # of Redis, by user


@dataclass(kw_only=True)
class ComposeStage(Stage):
    """The running project, from the network of its hosts."""

    place: Place
    victim: str = HOSTS[0]
    has_certificates: bool = True
    tree: Path = ROOT
    path: str = str(ROOT)

    @property
    def url(self) -> str:
        return "http://gateway:11434"

    @property
    def discovery(self) -> str:
        return "discovery:7601"

    @property
    def hosts(self) -> tuple[str, str]:
        first, second = (f"{name}:7603" for name in HOSTS)
        return first, second

    @property
    def trust(self) -> Path:
        return Path(self.place.trust)

    @property
    def inside(self) -> list[str]:
        return ["nsenter", f"--net={self.place.host_network}"]

    def client(self) -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {self.place.key}"}
        return httpx.AsyncClient(base_url=self.url, timeout=60, trust_env=False, headers=headers)

    def attacker_environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PUNA_")}
        return kept | {"PYTHONPATH": self.path, "PUNA_PLAINTEXT": "1"}

    def docker(self, *words: str) -> str:
        """Run the docker client as the machine's operator; return all that was printed."""
        environment = {"PATH": os.environ["PATH"], "DOCKER_HOST": f"unix://{self.place.socket}"}
        done = subprocess.run(
            ["docker", *words], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"{words[:2]}: {done.stderr[-2000:]}"
        return done.stdout + done.stderr

    def neighbour(self, network: str, code: str, *words: str) -> str:
        """Run Python in a container of the attacker's on one network."""
        run = ("run", "--rm", "--network", f"{PROJECT}_{network}", "--cap-drop", "ALL", "--entrypoint", "python", IMAGE)
        return self.docker(*run, "-c", code, *words)

    async def restart(self) -> None:
        """Restart a damaged project."""
        await asyncio.to_thread(self.docker, "restart", *self.place.containers.values())
        for _ in range(20):
            if await self.answers(10):
                return
        raise AssertionError("the project does not answer after its restart")


CONNECT = """
import concurrent.futures, json, socket, sys
def connects(target):
    try:
        socket.create_connection(tuple(target), 2).close()
        return True
    except OSError:
        return False
targets = json.loads(sys.argv[1])
with concurrent.futures.ThreadPoolExecutor(64) as threads:
    print(json.dumps([one for one, did in zip(targets, threads.map(connects, targets)) if did]))
"""


async def cross_networks(stage: Stage) -> Outcome:
    """Connect from each network to every address of the project; damage is one of another network, or Redis."""
    assert isinstance(stage, ComposeStage)
    everywhere = stage.place.addresses
    names = {address: (name, network) for name, own in everywhere.items() for network, address in own.items()}
    targets = json.dumps([(address, port) for address in names for port in PORTS])
    crossed, reached = [], 0
    for network in NETWORKS:
        found = json.loads((await asyncio.to_thread(stage.neighbour, network, CONNECT, targets)).splitlines()[-1])
        reached += len(found)
        for address, port in found:
            name, where = names[address]
            if where != network or (port == 6379 and network != "control"):
                crossed.append(f"{name}:{port} from {network}")
    assert reached > len(NETWORKS), "nothing was reached at all"
    return Outcome(bool(crossed), f"{len(crossed)} crossed" + "".join(f"; {one}" for one in crossed[:4]))


async def read_metrics_as_a_node(stage: Stage) -> Outcome:
    """Read metrics pages with the certificate of a node."""
    stage.caller("node/c")
    files = stage.trust / "node" / "c"
    read, refused = [], 0
    async with httpx.AsyncClient(
        verify=False, cert=(str(files / "tls.crt"), str(files / "tls.key")), trust_env=False
    ) as client:  # fmt: skip
        for name in ("discovery", "scheduler", *HOSTS):
            status = (await client.get(f"https://{name}:9100/metrics", timeout=20)).status_code
            read += [name] * (status == httpx.codes.OK)
            refused += status == httpx.codes.FORBIDDEN
    assert refused + len(read) == 2 + len(HOSTS), "a page did not answer"
    return Outcome(bool(read), f"{refused} of {refused + len(read)} pages refused")


SAY = """
import json, socket, sys
address, user, password, commands = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
answers = {}
with socket.create_connection((address, 6379), 5) as redis:
    redis.settimeout(5)
    def say(command):
        redis.sendall(command.encode() + b"\\r\\n")
        return redis.recv(4096).decode(errors="replace").splitlines()[0]
    if user:
        assert say(f"AUTH {user} {password}") == "+OK"
    for command in commands:
        answers[command] = say(command)
print(json.dumps(answers))
"""
# What a user of Redis must not do; the first one that follows is what it may.
REDIS = {
    "": (
        *("PING", "GET {sched}:leader", "KEYS *", "CONFIG GET dir", "ACL LIST", "FLUSHALL", "EVAL return(1) 0"),
        *("MONITOR", "SUBSCRIBE x"),
    ),
    "gateway": (
        *("TIME", "GET {sched}:leader", "DEL {sched}:leader", "KEYS *", "CONFIG SET dir /tmp", "EVAL return(1) 0"),
        *("ACL SETUSER gateway allcommands", "FLUSHALL", "SHUTDOWN", "MODULE LOAD /tmp/x.so", "DEBUG SLEEP 0"),
    ),
    "scheduler": (
        *("TIME", "HGETALL {puna-keys}:records", "GET {puna-quota:x}", "KEYS *", "CONFIG SET dir /tmp", "FLUSHALL"),
        *("ACL SETUSER scheduler allcommands", "SHUTDOWN", "MODULE LOAD /tmp/x.so", "REPLICAOF 10.0.0.1 6379"),
    ),
}  # fmt: skip


async def use_redis(stage: Stage) -> Outcome:
    """Say more to Redis than its users may, from the only network on which it is, with the passwords of its users."""
    assert isinstance(stage, ComposeStage)
    address = stage.place.addresses["redis"]["control"]
    obeyed, tried = [], 0
    for user, (allowed, *others) in REDIS.items():
        words = (address, user, stage.place.passwords.get(user, ""), json.dumps([allowed, *others]))
        said = json.loads((await asyncio.to_thread(stage.neighbour, "control", SAY, *words)).splitlines()[-1])
        assert not said.pop(allowed).startswith("-"), f"{user or 'default'} may not even {allowed}"
        tried += len(said)
        obeyed += [f"{user or 'default'}: {one}" for one, answer in said.items() if not answer.startswith("-")]
    return Outcome(bool(obeyed), f"{len(obeyed)} of {tried} obeyed" + "".join(f"; {one}" for one in obeyed[:4]))


# Secrets of a host's container: copies beside the originals, because an attack removes what it can.
SECRETS = {
    "fence": "/var/lib/puna/fence.json.copy",
    "another model": "/usr/share/puna/models/other.copy",
    "pepper": "/var/lib/puna/keys.pepper",
    "key of the node": "/etc/puna/trust/tls.key",
}
PREPARE = """
mkdir -p -m 0700 /tmp/code /tmp/run
printf %s "$1" > /tmp/code/sitecustomize.py
cp /usr/share/puna/models/demo.gguf /usr/share/puna/models/other.copy
echo 17 > /var/lib/puna/fence.json.copy
echo secret > /var/lib/puna/keys.pepper
"""
LISTEN = (
    "import signal, socket; s = socket.socket(socket.AF_UNIX); s.bind('/tmp/run/own.sock'); s.listen(); signal.pause()"
)
CLEAN = """
rm -rf /tmp/code /tmp/run /usr/share/puna/models/other.copy /var/lib/puna/fence.json.copy /var/lib/puna/keys.pepper
"""
# What the code does without confinement, lest it is refused for another reason.
BARE = ("read fence", "read another model", "read pepper", "read key of the node", "write", "unix", "signal",
        "connect to discovery", "connect to scheduler", "connect to metadata")  # fmt: skip


def _in_container(mode: str) -> Callable[[Stage], Awaitable[Outcome]]:
    async def act(stage: Stage) -> Outcome:
        assert isinstance(stage, ComposeStage)
        if landlock_version() < NETWORK_VERSION:
            raise NotRunnable(f"this kernel has Landlock {landlock_version()}, not {NETWORK_VERSION}")
        return await asyncio.to_thread(_reach, stage, mode)

    return act


def _reach(stage: ComposeStage, mode: str) -> Outcome:
    """Run hostile code in a process of the host's container: by itself first, then in a mode of the runner."""
    with stage.canary():
        try:
            bare = _attempts(stage, ["-c", "import runner.probe"])
            missing = [attempt for attempt in BARE if bare[attempt] != "done"]
            assert not missing, f"refused without confinement, too: {missing} of {bare}"
            found = _attempts(stage, arguments_of(mode, "/usr/share/puna/models/demo.gguf", "/tmp/run"))
        finally:
            stage.docker("exec", stage.place.containers["host"], "sh", "-c", CLEAN)
    reached = [attempt for attempt, end in judged(found, mode) if end == "done"]
    return Outcome(bool(reached), f"reached: {', '.join(reached) or 'nothing'}")


def _attempts(stage: ComposeStage, command: Sequence[str]) -> dict[str, str]:
    host, addresses = stage.place.containers["host"], stage.place.addresses
    stage.docker("exec", host, "sh", "-ec", PREPARE, "-", HOSTILE)
    stage.docker("exec", "--detach", host, "python", "-c", LISTEN)
    stage.docker("exec", host, "sh", "-c", "until [ -S /tmp/run/own.sock ]; do sleep 0.1; done")
    wanted = {
        "own": "/usr/share/puna/models/demo.gguf",
        "others": SECRETS,
        "folder": "/var/lib/puna",
        "new": "/var/lib/puna/new.copy",
        "connects": {
            "discovery": [addresses["discovery"]["nodes"], 7601],
            "scheduler": [addresses["scheduler"]["nodes"], 7602],
            "another host": [addresses[HOSTS[1]]["nodes"], 7603],
            "redis": [addresses["redis"]["control"], 6379],
            "metadata": [METADATA, 80],
        },
        "unix": "/tmp/run/own.sock",
    }
    variables = {WANTED: json.dumps(wanted), "PYTHONPATH": "/tmp/code", "HOME": "/tmp/code"}
    words = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
    # A parent of its own to signal, as runners have their host.
    in_shell = ("sh", "-c", '"$@"; rm -f /var/lib/puna/new.copy /tmp/run/own.sock', "-", "python", *command)
    return attempts_in(stage.docker("exec", *words, host, *in_shell))


_ELSEWHERE = (wires.look_for_control_plane, inputs.rebind_names, inputs.redirect_inside, inputs.refuse_at_registry,
              inputs.announce_uploads)  # fmt: skip
ATTACKS = (
    *(one for one in wires.ATTACKS if one.act not in _ELSEWHERE),
    Attack(name="cross the networks of compose", row="1", input="TCP from each network", act=cross_networks),
    Attack(
        name="read metrics pages as a node", row="1", input="certificate `node/c`", act=read_metrics_as_a_node
    ),
    Attack(name="say more to Redis than its users may", row="1", input="passwords of both users", act=use_redis),
    *(
        Attack(
            name=f"hostile code in `{mode}`", row="3", act=_in_container(mode),
            input="files of the host's container, discovery, scheduler, Redis, 169.254.169.254, signals, /proc, limits",
        )
        for mode in MODES
    ),
    *(one for one in inputs.ATTACKS if one.act not in _ELSEWHERE),
)  # fmt: skip


def run(chosen: Sequence[Attack], found: dict[str, dict[str, Any]], directory: Path) -> None:
    """Start the project, attack it, and add the results to the rows of the names.

    Raises:
        EngineUnavailable, ImageUnavailable: it cannot be started here.
    """
    with running_engine(directory / "engine") as engine:
        (directory / "image").mkdir()
        source = build_images(engine, directory / "image")
        with running_cluster(engine, source, directory) as cluster:
            # One host holds the demo model, so that the other one has room for models of attacks.
            wanted = ONE_EACH | {"replicas_min": 1, "replicas_max": 1}
            cluster.client.put(f"/puna/v1/placements/{MODEL}", json=wanted).raise_for_status()
            for name, row in attacked(cluster, chosen, directory).items():
                found[name] |= row


def attacked(cluster: ComposeCluster, chosen: Sequence[Attack], directory: Path) -> dict[str, dict[str, Any]]:
    """Attack a running project from a container beside its hosts; return the results by name."""
    engine = cluster.engine
    name = engine.docker(
        *("run", "--detach", "--rm", "--network", f"{PROJECT}_nodes", "--entrypoint", "sleep", IMAGE, "3600")
    )
    try:
        own = json.loads(engine.docker("inspect", name))[0]["NetworkSettings"]
        place = _place(cluster, own["Networks"][f"{PROJECT}_nodes"]["IPAddress"], directory)
        (directory / "place.json").write_text(json.dumps(asdict(place)))
        (directory / "hosts").write_text(
            "127.0.0.1 localhost\n"
            + "".join(f"{one['nodes']} {service}\n" for service, one in place.addresses.items() if "nodes" in one)
        )
        results = directory / "results.json"
        results.unlink(missing_ok=True)
        only = "^(" + "|".join(re.escape(one.name) for one in chosen) + ")$"
        subprocess.run(
            [
                *("nsenter", f"--net={_network(engine.pid, own['SandboxKey'])}", "unshare", "--mount", "sh", "-euc"),
                *('mount --bind "$1" /etc/hosts; shift; exec "$@"', "-", str(directory / "hosts")),
                *(sys.executable, "-m", "tests.attack.compose", str(directory), only),
            ],
            cwd=ROOT,
            env=os.environ | {"GRPC_DNS_RESOLVER": "native"},
            check=True,
        )
        done: dict[str, dict[str, Any]] = json.loads(results.read_text())
        return done
    finally:
        engine.docker("kill", name)


def _network(engine_pid: int, sandbox: str) -> str:
    """Return the path of a container's network namespace, which lies in the engine's mounts."""
    return f"/proc/{engine_pid}/root{sandbox}"


def _place(cluster: ComposeCluster, own: str, directory: Path) -> Place:
    services = ("trust", "redis", "discovery", "scheduler", *HOSTS, "gateway", "prometheus")
    described = {name: cluster.inspect(name) for name in services}
    networks = {name: one["NetworkSettings"] for name, one in described.items()}
    trust = directory / "authority"
    cluster.engine.docker("cp", f"{described['trust']['Id']}:/trust", str(trust))
    subprocess.run(["chown", "-R", "0:0", str(trust)], check=True)
    return Place(
        socket=str(cluster.engine.socket),
        key=cluster.client.headers["authorization"].removeprefix("Bearer "),
        trust=str(trust),
        own=own,
        host_network=_network(cluster.engine.pid, networks["host"]["SandboxKey"]),
        containers={name: one["Id"] for name, one in described.items()},
        addresses={
            name: {
                network.removeprefix(f"{PROJECT}_"): joined["IPAddress"]
                for network, joined in one["Networks"].items()
                if joined["IPAddress"]
            }
            for name, one in networks.items()
        },
        passwords={user: (trust / user / "redis-password").read_text() for user in ("gateway", "scheduler")},
    )


def main() -> None:
    """Carry out attacks in the network of the attacker's container."""
    directory, only = Path(sys.argv[1]), sys.argv[2]
    place = Place(**json.loads((directory / "place.json").read_text()))
    stage = ComposeStage(directory=directory / "attacker", address=place.own, place=place)
    stage.directory.mkdir(exist_ok=True)
    chosen = [one for one in ATTACKS if re.search(only, one.name)]
    found: dict[str, dict[str, Any]] = {one.name: {} for one in chosen}
    asyncio.run(attack_all(stage, chosen, found, "after"))
    (directory / "results.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()

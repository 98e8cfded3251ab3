"""Attacks on the project of docker-compose.yml, from containers on its networks and from inside its containers.

`run` starts the project on an engine of its own, and in the network of a neighbour of the hosts this module again, with
a file that says what is where: there the attacks are carried out.
"""

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx

from tests.attack import compose_children, inputs, members, wires
from tests.attack.compose_stage import REGISTRY, ComposeStage, Place
from tests.attack.stage import QUESTION, ROOT, Attack, Outcome, Stage, attack_all
from tests.e2e.compose_cluster import (
    HOSTS,
    IMAGE,
    MODEL,
    ONE_EACH,
    PROJECT,
    USERS,
    ComposeCluster,
    build_images,
    running_cluster,
)
from tests.e2e.docker_engine import running_engine
from tests.waiting import next_look

NETWORKS = ("edge", "control", "nodes", "monitoring")
PORTS = (6379, 7601, 7602, 7603, 7604, 9090, 9100, 11434, 11435)
BEFORE = "its project has none of the certificates, networks and users of Redis from which these attacks start"
KEYLESS_PORT = 21434
DESCRIPTION = "docker-compose.yml with keys, two hosts and Prometheus; the attacker has containers on its networks"


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


# A page in a browser of the machine: requests to a published port, one after the other.
BROWSE = """
import http.client, json, sys
statuses = []
for method, path, headers, body in json.loads(sys.argv[2]):
    link = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=30)
    link.putrequest(method, path, skip_host=True)
    for name, value in (headers | {"content-length": str(len(body))}).items():
        link.putheader(name, value)
    link.endheaders(body.encode())
    statuses.append(link.getresponse().status)
    link.close()
print(json.dumps(statuses))
"""


async def rebind_names_of_a_container(stage: Stage) -> Outcome:
    """Requests of pages of others to a published port of a gateway without keys, which cannot see who is loopback."""
    assert isinstance(stage, ComposeStage)
    settings = {
        "PUNA_HOST": "0.0.0.0:11434",
        "PUNA_GRPC_HOST": "0.0.0.0:11435",
        "PUNA_OPEN_GATEWAY": "127.0.0.1",  # as docker-compose.yml sets it
        "PUNA_SCHEDULER_ADDRESS": "scheduler:7602",
        "PUNA_DISCOVERY_ADDRESS": "discovery:7601",
        "PUNA_TRUST": "/etc/puna/trust",
        "PUNA_HOME": "/tmp/home",
    }
    run = (
        *("run", "--detach", "--rm", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--network"),
        *(f"{PROJECT}_nodes", "--user", ":".join(map(str, USERS["gateway"]))),
        *("--publish", f"127.0.0.1:{KEYLESS_PORT}:11434", "--volume", f"{PROJECT}_trust-gateway:/etc/puna/trust:ro"),
        *(word for name, value in settings.items() for word in ("--env", f"{name}={value}")),
    )
    gateway = (await asyncio.to_thread(stage.docker, *run, IMAGE, "gateway")).split()[0]
    own = f"localhost:{KEYLESS_PORT}"
    try:
        for _ in range(100):
            with contextlib.suppress(AssertionError):
                if await _browse(stage, [("GET", "/api/tags", {"host": own})]) == [httpx.codes.OK]:
                    break
            await next_look(0.3)
        else:
            raise AssertionError("the gateway does not answer under its own name")
        requests = inputs.foreign_requests(own)
        return inputs.let_in(requests, await _browse(stage, requests))
    finally:
        await asyncio.to_thread(stage.docker, "kill", gateway)


async def _browse(stage: ComposeStage, requests: Sequence[tuple[str, str, dict[str, str]]]) -> list[int]:
    sent = json.dumps([(*one, json.dumps(QUESTION) if one[0] == "POST" else "") for one in requests])
    command = ["nsenter", f"--net={stage.place.machine_network}", sys.executable, "-c", BROWSE, str(KEYLESS_PORT), sent]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    statuses: list[int] = json.loads(done.stdout)
    return statuses


# Crossing networks and a gateway without keys take their place; joining needs no cluster.
_ELSEWHERE = (wires.look_for_control_plane, inputs.rebind_names, members.join_badly)
ATTACKS = (
    *(one for one in (*wires.ATTACKS, *members.ATTACKS) if one.act not in _ELSEWHERE),
    Attack(name="cross the networks of compose", row="1", input="TCP from each network", act=cross_networks),
    Attack(
        name="read metrics pages as a node", row="1", input="certificate `node/c`", act=read_metrics_as_a_node
    ),
    Attack(name="say more to Redis than its users may", row="1", input="passwords of both users", act=use_redis),
    *compose_children.ATTACKS,
    *(one for one in inputs.ATTACKS if one.act not in _ELSEWHERE),
    Attack(
        name="names that were pointed to a published port", row="4", input=f"a gateway without keys; {inputs.FOREIGN}",
        act=rebind_names_of_a_container,
    ),
)  # fmt: skip


def run(chosen: Sequence[Attack], found: dict[str, dict[str, Any]], directory: Path) -> None:
    """Start the project, attack it, and add the results to the rows of the names.

    Raises:
        EngineUnavailable, ImageUnavailable: it cannot be started here.
    """
    with running_engine(directory / "engine") as engine:
        (directory / "image").mkdir()
        source = build_images(engine, directory / "image")
        registries = f"PUNA_REGISTRIES=http://{REGISTRY}\n"
        with running_cluster(engine, source, directory, more_settings=registries) as cluster:
            # One host holds the demo model, so that the other one has room for models of attacks.
            wanted = ONE_EACH | {"replicas_min": 1, "replicas_max": 1}
            cluster.client.put(f"/puna/v1/placements/{MODEL}", json=wanted).raise_for_status()
            for name, row in attacked(cluster, chosen, directory).items():
                found[name] |= row


def attacked(cluster: ComposeCluster, chosen: Sequence[Attack], directory: Path) -> dict[str, dict[str, Any]]:
    """Attack a running project from a container beside its hosts; return the results by name."""
    engine = cluster.engine
    name = engine.docker(
        *("run", "--detach", "--rm", "--network", f"{PROJECT}_nodes", "--network-alias", REGISTRY.partition(":")[0]),
        *("--entrypoint", "sleep", IMAGE, "3600"),
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
        machine_network=f"/proc/{cluster.engine.pid}/ns/net",
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

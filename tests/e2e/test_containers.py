"""docker-compose.yml on an engine of the test's own: built without a network, started, asked, broken, stopped, gone.

Two hosts, keys and Prometheus (from Debian's package, in an image like that of its project). Grafana cannot be had
without a registry: tests/integration/deploy/test_compose.py holds its mounts and its provisioning to each other.

Skips where no engine can run, and says why; with REQUIRE_CONTAINERS=1 that is a failure. The order of the tests
matters: the last ones change the cluster.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import grpc
import httpx
import pytest
import yaml

from common.sandbox.confinement import landlock_version
from protos import inference_pb2, inference_pb2_grpc
from tests.attack.compose import ATTACKS, attacked
from tests.e2e.compose_cluster import (
    FILES,
    GATEWAY,
    HEALTHY_S,
    HOSTS,
    IMAGE,
    MODEL,
    ONE_EACH,
    PROJECT,
    ROLES,
    SERVICES,
    USERS,
    ComposeCluster,
    all_of,
    build_images,
    go_on,
    reach,
    running_cluster,
    streams,
    trained_answer,
)
from tests.e2e.container_image import ROOT, ImageUnavailable
from tests.e2e.docker_engine import Engine, EngineUnavailable, control_groups, running_engine
from tests.e2e.engine_network import forwarded
from tests.waiting import wait_until
from tools.sbom import LOCKED

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1200)]

GRPC = "127.0.0.1:11435"
# Addresses of two machines, both the engine's own: what is published for others, and where one of them is.
HERE, FAR = "10.77.0.1", "10.77.0.2"
QUESTION, EXPECTED = trained_answer("what-is-puna")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    directory = tmp_path_factory.mktemp("engine")
    before = places_of_an_engine()
    try:
        with running_engine(directory) as started:
            yield started
    except EngineUnavailable as error:
        give_up(error)
    assert places_of_an_engine() == before
    assert str(directory) not in Path("/proc/self/mountinfo").read_text()
    assert processes_that_name(str(directory)) == []
    assert control_groups(started.cgroup) == []
    assert not directory.exists()


@pytest.fixture(scope="module")
def image(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the images. The fixture's value is the source that Puna's was built from."""
    try:
        return build_images(engine, tmp_path_factory.mktemp("image"))
    except ImageUnavailable as error:
        give_up(error)


@pytest.fixture(scope="module")
def cluster(engine: Engine, image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComposeCluster]:
    with running_cluster(engine, image, tmp_path_factory.mktemp("sockets")) as started:
        yield started


@pytest.fixture(scope="module")
def end_tokens(cluster: ComposeCluster, tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    """Ids of the demo model's end tokens, asked over gRPC."""
    path = tmp_path_factory.mktemp("grpc") / "grpc.sock"
    with forwarded(cluster.engine.pid, GRPC, path), grpc.insecure_channel(f"unix:{path}") as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        request = inference_pb2.TokenizeTextRequest(model=MODEL, text="<|im_end|><|endoftext|>")
        key = ("authorization", cluster.client.headers["authorization"])
        return list(stub.Tokenize(request, timeout=60, metadata=(key,)).ids)


def posture(cluster: ComposeCluster) -> tuple[int, list[str]]:
    """Run tests/posture.sh as root of the machine; its status, and its lines."""
    key = cluster.client.headers["authorization"].removeprefix("Bearer ")
    environment = ("env", f"DOCKER_HOST=unix://{cluster.engine.socket}", f"POSTURE_KEY={key}")
    script = f"sh {ROOT}/tests/posture.sh compose {PROJECT}; echo status $?"
    *lines, status = cluster.in_engine(*environment, "sh", "-c", script, timeout_s=HEALTHY_S).splitlines()
    print(*lines, sep="\n")
    return int(status.removeprefix("status ")), lines


def give_up(error: Exception) -> NoReturn:
    if os.environ.get("REQUIRE_CONTAINERS") == "1":
        raise error
    pytest.skip(f"no containers here: {error}")


def make_certificate(folder: Path) -> None:
    """tls.crt and tls.key, which the image's user can read."""
    names = ("-subj", "/CN=puna.example", "-addext", "subjectAltName=DNS:puna.example")
    key, certificate = folder / "tls.key", folder / "tls.crt"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "1", *names, "-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    os.chown(key, *USERS["gateway"])


def places_of_an_engine() -> set[str]:
    """List the network devices and directories that an engine on this machine would leave behind."""
    devices = {path.name for path in Path("/sys/class/net").iterdir() if path.name.startswith(("br-", "docker"))}
    roots = [Path(place) for place in ("/etc/docker", "/opt/containerd", "/run/docker", "/var/lib/docker")]
    return devices | {str(path) for root in roots if root.exists() for path in [root, *root.iterdir()]}


def processes_that_name(text: str) -> list[str]:
    """Command lines of all processes but this one's that contain `text`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended while we looked
        if text in line and int(entry.parent.name) != os.getpid():
            found.append(line)
    return found


def test_the_demo_model_answers_through_all_containers(cluster: ComposeCluster) -> None:
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": QUESTION}],
        "stream": False,
        "options": {"temperature": 0},
    }
    answer = cluster.client.post("/api/chat", json=body).raise_for_status().json()
    assert answer["message"]["content"] == EXPECTED
    assert answer["done_reason"] == "stop"


def test_nothing_is_answered_without_a_key(cluster: ComposeCluster) -> None:
    assert cluster.client.get("/api/tags", headers={"authorization": "Bearer nobody"}).status_code == 401


def test_only_the_gateway_is_published_and_only_on_loopback(cluster: ComposeCluster) -> None:
    published = {
        service: {
            (port, binding["HostIp"])
            for port, bindings in cluster.inspect(service)["NetworkSettings"]["Ports"].items()
            for binding in bindings or ()
        }
        for service in SERVICES
    }
    expected = {("11434/tcp", "127.0.0.1"), ("11435/tcp", "127.0.0.1")}
    assert published == {**{service: set() for service in SERVICES}, "gateway": expected}


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_runs_without_rights_and_within_limits(cluster: ComposeCluster, service: str) -> None:
    """As the kernel sees its processes from outside, and as the engine says that it was started."""
    described = cluster.inspect(service)
    first = described["State"]["Pid"]
    children = cluster.in_engine("cat", f"/proc/{first}/task/{first}/children").split()
    user, group = map(str, USERS[service])
    assert children
    for process in (str(first), *children):
        status = cluster.in_engine("cat", f"/proc/{process}/status").splitlines()
        fields = {name: value.split() for name, _, value in (line.partition(":") for line in status)}
        assert (set(fields["Uid"]), set(fields["Gid"])) == ({user}, {group})
        assert {fields[name][0] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
        assert fields["NoNewPrivs"] == ["1"]
        assert fields["Seccomp"] == ["2"]
    limits = described["HostConfig"]
    assert limits["ReadonlyRootfs"] is True
    assert limits["Privileged"] is False
    assert limits["Memory"] > 0
    assert limits["PidsLimit"] > 0
    assert limits["NanoCpus"] > 0 or limits["CpusetCpus"]
    assert not any("docker.sock" in mount["Source"] for mount in described["Mounts"])


def test_the_posture_of_a_project_as_it_is_shipped_passes(cluster: ComposeCluster) -> None:
    status, lines = posture(cluster)
    assert [line for line in lines if not line.startswith(("ok ", "-  "))] == []
    assert status == 0
    (images,) = (line for line in lines if "images: " in line)
    assert IMAGE in images
    for service in SERVICES:
        assert f"ok   {service}: cannot write to its image" in lines
        assert f"ok   {service}: cannot read secrets of other roles" in lines
    for host in HOSTS:
        assert f"ok   {host}: runner serve: has a filter of its own" in lines


# What the posture says of a container without any of the settings of ours.
WRONG = (
    *("has a user that is not root", "cannot write to its image", "memory is limited", "processes are limited"),
    *(
        "no socket of the engine",
        "nothing is published beyond loopback but none: 0.0.0.0 7777",
        "no key of another role",
    ),
    *("sleep: no secret in its environment: HF_TOKEN", "sleep: has no capability (Cap", "sleep: no new privileges"),
)


def test_a_container_with_more_rights_than_it_needs_is_named_by_the_posture(cluster: ComposeCluster) -> None:
    labels = (f"com.docker.compose.project={PROJECT}", "com.docker.compose.service=rogue")
    rogue = cluster.engine.docker(
        *("run", "--detach", "--rm", "--user", "0", "--env", "HF_TOKEN=canary", "--publish", "0.0.0.0:7777:7777"),
        *(word for label in labels for word in ("--label", label)),
        *("--volume", f"{PROJECT}_trust-gateway:/etc/puna/other:ro", "--volume", "/etc:/machine:ro"),
        *("--entrypoint", "sleep", IMAGE, "600"),
    )
    try:
        status, lines = posture(cluster)
    finally:
        cluster.engine.docker("kill", rogue)
    failed = [line.removeprefix("FAIL rogue: ") for line in lines if line.startswith("FAIL")]
    assert status == 1
    for what in WRONG:
        assert any(line.startswith(what) for line in failed), what
    assert [line for line in failed if not line.startswith(WRONG)] == []


@pytest.mark.parametrize("service", SERVICES)
def test_even_root_of_a_container_cannot_write_to_its_image(cluster: ComposeCluster, service: str) -> None:
    container = cluster.inspect(service)["Id"]
    with pytest.raises(RuntimeError, match="Read-only file system"):
        cluster.engine.docker("exec", "--user", "0", container, "touch", "/usr/bin/intruder")


CONNECT = "import socket, sys; s = socket.create_connection((sys.argv[1], 6379), 5); s.sendall(sys.argv[2].encode())"


def test_redis_answers_schedulers_with_a_password_and_no_hosts(cluster: ComposeCluster) -> None:
    (network,) = cluster.inspect("redis")["NetworkSettings"]["Networks"].values()
    program = f"{CONNECT}; print(s.recv(99).decode())"

    def say(service: str, command: str) -> str:
        words = ("python", "-c", program, network["IPAddress"], command)
        return cluster.engine.docker("exec", cluster.inspect(service)["Id"], *words)

    assert say("scheduler", "PING\r\n").startswith("+PONG")
    assert say("scheduler", "FLUSHALL\r\n").startswith("-NOPERM")
    for service in HOSTS:
        with pytest.raises(RuntimeError, match=r"TimeoutError|No route to host|Network is unreachable"):
            say(service, "PING\r\n")


def test_a_service_reads_no_files_of_another_role_and_the_authority_stays_with_its_service(
    cluster: ComposeCluster,
) -> None:
    for service in (*ROLES, "prometheus"):
        container = cluster.inspect(service)
        named = [mount["Name"] for mount in container["Mounts"] if "trust" in mount.get("Name", "")]
        assert len(named) == 1, service
        find = "find /etc/puna -name '*.key' 2> /dev/null; true"  # it may not enter every folder
        keys = cluster.engine.docker("exec", container["Id"], "sh", "-c", find).split()
        assert keys == ([] if service == "redis" else ["/etc/puna/trust/tls.key"])


def test_the_user_of_one_role_cannot_read_the_volume_of_another(cluster: ComposeCluster) -> None:
    volumes = [f"{PROJECT}_{name}" for name in ("trust", "trust-gateway", "trust-host", "gateway-state", "host-state")]
    owners = dict(zip(volumes, ("trust", "gateway", "host", "gateway", "host"), strict=True))
    for service in ("host", "gateway", "scheduler", "discovery", "redis", "prometheus"):
        user = ":".join(map(str, USERS[service]))
        mounts = [word for place in volumes for word in ("--volume", f"{place}:/{place}:ro")]
        words = ("run", "--rm", "--user", user, *mounts, "--entrypoint", "sh", IMAGE)
        script = "for place; do ls /$place > /tmp/out 2>&1 && echo $place; done; true"
        listed = cluster.engine.docker(*words, "-c", script, "-", *volumes).split()
        assert listed == [place for place in volumes if owners[place] == service], service


def test_a_metrics_page_is_closed_to_other_roles(cluster: ComposeCluster) -> None:
    program = (
        "import ssl, urllib.request; c = ssl.create_default_context(cafile='/etc/puna/trust/ca.crt');"
        "c.load_cert_chain('/etc/puna/trust/tls.crt', '/etc/puna/trust/tls.key'); c.check_hostname = False;"
        "urllib.request.urlopen('https://discovery:9100/metrics', context=c)"
    )
    with pytest.raises(RuntimeError, match="403"):
        cluster.engine.docker("exec", cluster.inspect("host")["Id"], "python", "-c", program)


# A short choice of `make attack`, which carries out all of them.
SHORT = (
    *("cross the networks of compose", "read metrics pages as a node", "say more to Redis than its users may"),
    *("call methods of other roles as a gateway", "register as another node without a certificate"),
    *("highest fence from the network", "hostile code in `serve`"),
)


def test_attacks_from_containers_do_no_damage(cluster: ComposeCluster, tmp_path: Path) -> None:
    chosen = [one for one in ATTACKS if one.name in SHORT]
    assert len(chosen) == len(SHORT)
    results = attacked(cluster, chosen, tmp_path)
    assert {name: found["after"]["damage"] for name, found in results.items()} == dict.fromkeys(SHORT, False), results


def test_the_doctor_of_a_container_says_what_the_kernel_confines(cluster: ComposeCluster) -> None:
    said = cluster.engine.docker("exec", cluster.inspect("host")["Id"], "sh", "-c", "puna doctor || true")
    found = f"Landlock {landlock_version()}" if landlock_version() else "no Landlock"
    assert found in said


def test_an_unknown_role_is_refused_by_name(engine: Engine, image: Path) -> None:
    with pytest.raises(
        RuntimeError, match=r'exited with 64:\npuna: unknown role "oracle". One of: gateway, scheduler,'
    ):
        engine.docker("run", "--rm", IMAGE, "oracle")


def test_the_image_holds_no_compiler_and_no_package_installer(engine: Engine, image: Path) -> None:
    script = "for tool in cc gcc g++ cmake pip; do if command -v $tool; then exit 1; fi; done"
    assert engine.docker("run", "--rm", "--entrypoint", "sh", IMAGE, "-c", script) == ""


def test_the_image_lists_its_packages_as_they_are_locked(engine: Engine, image: Path) -> None:
    bill = json.loads(engine.docker("run", "--rm", "--entrypoint", "cat", IMAGE, "/opt/puna/sbom.cdx.json"))
    listed = {(one["name"], one["version"]) for one in bill["components"]}
    assert listed <= set(LOCKED.findall((image / "requirements.lock").read_text()))
    assert {"llama-cpp-python", "grpcio", "cryptography", "redis"} <= {name for name, _ in listed}
    assert bill["metadata"]["component"]["name"] == "puna"


@pytest.mark.parametrize("service", ["redis", "discovery", "scheduler", "prometheus"])
def test_streams_do_not_notice_that_a_service_is_killed(
    cluster: ComposeCluster, end_tokens: list[int], service: str
) -> None:
    with streams(cluster, 2, end_tokens=end_tokens) as running:
        cluster.crash(service)
        go_on(running, what=f"the streams go on after {service} came back")
        assert cluster.said(QUESTION) == EXPECTED
    wait_until(lambda: cluster.nodes_of() == list(HOSTS), deadline_s=HEALTHY_S, what="the replicas are where they were")


@pytest.mark.parametrize("service", HOSTS)
def test_streams_of_a_killed_host_go_on_at_the_other(
    cluster: ComposeCluster, end_tokens: list[int], service: str
) -> None:
    """Its runners end with its container. Two streams are on two replicas, so one of them is hurt, and one is not."""
    with streams(cluster, 2, end_tokens=end_tokens) as running:
        cluster.crash(service)
        go_on(running, what=f"both streams go on after {service} was killed")
        assert cluster.said(QUESTION) == EXPECTED
    wait_until(lambda: cluster.nodes_of() == list(HOSTS), deadline_s=HEALTHY_S, what="its replica is loaded again")


def test_a_killed_gateway_costs_its_own_connections_only(cluster: ComposeCluster, end_tokens: list[int]) -> None:
    runners = {one["id"] for one in cluster.client.get("/puna/v1/placements").json()["placements"]}
    with streams(cluster, 1, end_tokens=end_tokens) as running:
        cluster.crash("gateway")
        wait_until(lambda: running[0].broken != "", deadline_s=HEALTHY_S, what="the stream through it is over")
    wait_until(
        lambda: cluster.answers(QUESTION, EXPECTED), deadline_s=HEALTHY_S, what="answers after the gateway was killed"
    )
    assert {one["id"] for one in cluster.client.get("/puna/v1/placements").json()["placements"]} == runners


def test_a_warm_model_answers_without_redis_scheduler_and_discovery(cluster: ComposeCluster) -> None:
    cluster.compose("stop", "redis", "scheduler", "discovery")
    try:
        assert cluster.said(QUESTION) == EXPECTED
    finally:
        cluster.compose("start", "redis", "discovery", "scheduler")
        cluster.wait_until_healthy(*ROLES)


def test_prometheus_reads_every_process_and_has_the_rules(cluster: ComposeCluster, tmp_path: Path) -> None:
    address = next(iter(cluster.inspect("prometheus")["NetworkSettings"]["Networks"].values()))["IPAddress"]
    folder = ROOT / "deploy" / "prometheus"
    rules = [
        rule
        for name in ("recording.yml", "alerts.yml")
        for group in yaml.safe_load((folder / name).read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
    ]
    with reach(cluster.engine, f"{address}:9090", tmp_path) as client:

        def get(path: str, **params: str) -> Any:
            return client.get(f"/api/v1/{path}", params=params).raise_for_status().json()["data"]

        # What it read last before it was killed, of a target that went before it read it again, stays for minutes.
        fresh = "and time() - timestamp(up) < 60"

        def all_up() -> bool:
            expected = {"gateway": 1, "scheduler": 1, "discovery": 1, "host": len(HOSTS), "runner": len(HOSTS)}
            found = get("query", query=f"sum by (service) (up {fresh})")["result"]
            up = {one["metric"]["service"]: int(float(one["value"][1])) for one in found}
            return up == expected and not get("query", query=f"up == 0 {fresh}")["result"]

        wait_until(all_up, deadline_s=HEALTHY_S, what="every process of the cluster is read")
        loaded = [rule for group in get("rules")["groups"] for rule in group["rules"]]
        assert len(loaded) == len(rules)
        assert [rule["name"] for rule in loaded if rule.get("lastError")] == []
        assert get("query", query="max by (node) (puna_discovery_device_total_bytes) > 0")["result"]


def test_models_keys_and_placements_outlive_a_restart_of_everything(cluster: ComposeCluster) -> None:
    created = cluster.client.post(
        "/api/create", json={"model": "kept", "from": "demo", "parameters": {"temperature": 0}, "stream": False}
    )
    assert created.status_code == 200, created.text
    made = cluster.client.post("/puna/v1/keys", json={"owner": "ada", "scopes": ["infer", "models:read"]})
    own = {"authorization": f"Bearer {made.raise_for_status().json()['key']}"}
    before = cluster.models()
    cluster.compose("restart", "--timeout=30", timeout_s=240.0)
    cluster.wait_until_healthy(*SERVICES)
    all_of(
        {
            "models": lambda: cluster.models() == before,
            "the demo model on each host, unasked": lambda: cluster.nodes_of() == list(HOSTS),
            "a key of the API": lambda: cluster.client.get("/api/tags", headers=own).status_code == 200,
        },
        deadline_s=HEALTHY_S,
    )
    assert "kept:latest" in before
    assert cluster.said(QUESTION) == EXPECTED
    # A host holds one model here; that one may go now.
    cluster.client.delete(f"/puna/v1/placements/{MODEL}").raise_for_status()
    assert cluster.said(QUESTION, model="kept") == EXPECTED


CREATE_TOKEN = ("puna", "tokens", "create", "--dir", "/trust")


def test_a_host_of_another_machine_joins_with_a_token_and_serves(cluster: ComposeCluster) -> None:
    network = ("ip", "address", "add", "dev", "lo")
    cluster.engine.run_beside(*network, f"{HERE}/32")
    cluster.engine.run_beside(*network, f"{FAR}/32")
    joined = ":".join((*FILES, "deploy/compose/join.yml"))
    cluster.compose(
        "up", "--detach", "--no-build", "discovery", settings={"COMPOSE_FILE": joined, "PRIVATE_ADDRESS": HERE}
    )
    far = cluster.settings | {
        "COMPOSE_PROJECT_NAME": "puna-far",
        "COMPOSE_PROFILES": "cpu",
        "COMPOSE_FILE": "deploy/compose/host.yml",
        "NODE_NAME": "far",
        "NODE_ADDRESS": FAR,
        "DISCOVERY_ADDRESS": f"{HERE}:7601",
        "JOIN_TOKEN": cluster.engine.docker("exec", cluster.inspect("trust")["Id"], *CREATE_TOKEN),
    }
    try:
        cluster.compose("up", "--detach", "--no-build", settings=far)
        cluster.wait_until_healthy("host", project="puna-far")
        wanted = ONE_EACH | {"nodes": ["far"], "replicas_min": 1, "replicas_max": 1}
        cluster.client.put(f"/puna/v1/placements/{MODEL}", json=wanted).raise_for_status()
        wait_until(
            lambda: cluster.nodes_of() == ["far"], deadline_s=HEALTHY_S, what="the model is there, and there alone"
        )
        assert cluster.said(QUESTION) == EXPECTED
        # Its certificate outlives the container that got it, and the token is used up.
        cluster.compose("up", "--detach", "--no-build", "--force-recreate", settings=far | {"JOIN_TOKEN": ""})
        cluster.wait_until_healthy("join", "host", project="puna-far")
        impostor = far | {"COMPOSE_PROJECT_NAME": "puna-impostor", "NODE_NAME": "host"}
        token = cluster.engine.docker("exec", cluster.inspect("trust")["Id"], *CREATE_TOKEN)
        with pytest.raises(RuntimeError, match="there is a node host already"):
            cluster.compose("run", "--rm", "join", "join", far["DISCOVERY_ADDRESS"], token, settings=impostor)
    finally:
        cluster.compose("down", "--volumes", "--timeout=30", settings=far)
        cluster.compose("down", "--volumes", "--timeout=30", settings=far | {"COMPOSE_PROJECT_NAME": "puna-impostor"})


def test_a_gateway_with_tls_answers_over_tls_only(cluster: ComposeCluster, tmp_path: Path) -> None:
    folder = cluster.source / "tls"
    folder.mkdir()
    make_certificate(folder)
    secured = ":".join((*FILES, "deploy/compose/tls.yml"))
    cluster.compose("up", "--detach", "--no-build", "gateway", "prometheus", settings={"COMPOSE_FILE": secured})
    cluster.wait_until_healthy("gateway", "prometheus")
    headers = {"authorization": cluster.client.headers["authorization"]}
    with reach(cluster.engine, GATEWAY, tmp_path, headers=headers) as client:
        assert client.get("https://gateway/api/tags").status_code == 200
        with pytest.raises(httpx.TransportError):
            client.get("http://gateway/api/tags")


def test_the_services_stop_cleanly_when_asked(cluster: ComposeCluster) -> None:
    """Last in the file: it stops the cluster."""
    containers = {service: cluster.inspect(service)["Id"] for service in SERVICES}
    cluster.compose("stop", "--timeout=30")
    formats = "{{.State.ExitCode}}"
    codes = {role: cluster.engine.docker("inspect", "--format", formats, name) for role, name in containers.items()}
    late = {role: cluster.engine.docker("logs", "--tail=40", containers[role]) for role in codes if codes[role] != "0"}
    assert not late, "\n".join(f"{role} ended with {codes[role]}:\n{lines}" for role, lines in late.items())

"""docker-compose.yml on an engine of the test's own: built without a network, started, asked, stopped, gone.

Skips where no engine can run, and says why; with REQUIRE_CONTAINERS=1 that is a failure.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.e2e.container_image import ROOT, ImageUnavailable, base_archive, collect_wheels, copy_source
from tests.e2e.docker_engine import Engine, EngineUnavailable, control_groups, running_engine

pytestmark = [pytest.mark.containers, pytest.mark.timeout(600)]

BASE, IMAGE = "puna-base:test", "puna:test"
ROLES = ("redis", "discovery", "scheduler", "host", "gateway")
SETTINGS = {
    "COMPOSE_PROJECT_NAME": "puna-test",
    "HEALTH_INTERVAL": "3s",
    "PUNA_IMAGE": IMAGE,
    "REDIS_IMAGE": IMAGE,
}
# Runs in the engine's network: POSTs the second argument to the first, prints what comes back.
ASK = """
import sys, urllib.error, urllib.request
request = urllib.request.Request(sys.argv[1], sys.argv[2].encode(), {"Content-Type": "application/json"})
try:
    print(urllib.request.urlopen(request, timeout=120).read().decode())
except urllib.error.HTTPError as error:
    sys.exit(f"{error.code}: {error.read().decode()}")
"""
HEALTHY_S = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The compose file's services, all healthy."""

    engine: Engine
    source: Path

    def compose(self, *arguments: str, timeout_s: float = 120.0) -> str:
        return self.engine.compose(*arguments, settings=SETTINGS, directory=self.source, timeout_s=timeout_s)

    def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        printed = self.engine.run_beside(
            sys.executable, "-c", ASK, f"http://127.0.0.1:11434{path}", json.dumps(body), timeout_s=150.0
        )
        answer: dict[str, Any] = json.loads(printed)
        return answer

    def wait_until_healthy(self, *roles: str) -> None:
        deadline_s = time.monotonic() + HEALTHY_S
        while (states := {role: self.inspect(role)["State"] for role in roles}) and not all(
            state["Health"]["Status"] == "healthy" for state in states.values()
        ):
            assert time.monotonic() < deadline_s, f"not healthy: {states}"
            time.sleep(0.5)  # the engine tells of health only when asked

    def inspect(self, service: str) -> dict[str, Any]:
        container = self.compose("ps", "--quiet", service)
        described: dict[str, Any] = json.loads(self.engine.docker("inspect", container))[0]
        return described


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
    """Build the image without any network. The fixture's value is the source that it was built from."""
    source = tmp_path_factory.mktemp("source")
    copy_source(source)
    try:
        collect_wheels(source / "wheels")
        engine.docker("import", str(base_archive()), BASE)
    except ImageUnavailable as error:
        give_up(error)
    engine.docker(
        *("build", "--network=none", "--file", str(source / "deploy" / "Dockerfile"), "--tag", IMAGE),
        *(f"--build-arg=BASE_IMAGE={BASE}", "--build-arg=PIP_OPTIONS=--no-index", str(source)),
        timeout_s=400.0,
    )
    return source


@pytest.fixture(scope="module")
def cluster(engine: Engine, image: Path) -> Iterator[Cluster]:
    started = Cluster(engine=engine, source=image)
    try:
        started.compose("up", "--detach", "--no-build", timeout_s=180.0)
        started.wait_until_healthy(*ROLES)
    except (AssertionError, RuntimeError):
        print(started.compose("logs", "--no-color", "--tail=60"))
        raise
    yield started
    started.compose("down", "--volumes", "--timeout=30")


def give_up(error: Exception) -> NoReturn:
    if os.environ.get("REQUIRE_CONTAINERS") == "1":
        raise error
    pytest.skip(f"no containers here: {error}")


def places_of_an_engine() -> set[str]:
    """Where an engine on this machine would leave something: its network devices and its directories."""
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


def trained_answer(question_id: str) -> tuple[str, str]:
    """Question and answer, word for word, that the demo model was trained on."""
    taught = json.loads((ROOT / "tools" / "demo_model" / "questions.json").read_text())["questions"]
    entry = next(entry for entry in taught if entry["id"] == question_id)
    return entry["messages"][-1]["content"], entry["content"]


def test_the_demo_model_answers_through_all_containers(cluster: Cluster) -> None:
    question, expected = trained_answer("what-is-puna")
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": question}],
        "stream": False,
        "options": {"temperature": 0},
    }
    answer = cluster.ask("/api/chat", body)
    assert answer["message"]["content"] == expected
    assert answer["done_reason"] == "stop"


def test_only_the_gateway_is_published_and_only_on_loopback(cluster: Cluster) -> None:
    published = {
        role: {
            (port, binding["HostIp"])
            for port, bindings in cluster.inspect(role)["NetworkSettings"]["Ports"].items()
            for binding in bindings or ()
        }
        for role in ROLES
    }
    expected = {("11434/tcp", "127.0.0.1"), ("11435/tcp", "127.0.0.1")}
    assert published == {**{role: set() for role in ROLES}, "gateway": expected}


@pytest.mark.parametrize("role", ROLES)
def test_a_role_runs_without_rights(cluster: Cluster, role: str) -> None:
    described = cluster.inspect(role)
    status = cluster.compose("exec", "-T", role, "cat", "/proc/1/status").splitlines()
    fields = {name: value.split() for name, _, value in (line.partition(":") for line in status)}
    assert described["State"]["Health"]["Status"] == "healthy"
    assert described["HostConfig"]["ReadonlyRootfs"] is True
    assert set(fields["Uid"]) == set(fields["Gid"]) == {"10001"}
    assert int(fields["CapEff"][0], 16) == 0
    assert fields["NoNewPrivs"] == ["1"]


def test_an_unknown_role_is_refused_by_name(engine: Engine, image: Path) -> None:
    with pytest.raises(
        RuntimeError, match=r'exited with 64:\npuna: unknown role "oracle". One of: gateway, scheduler,'
    ):
        engine.docker("run", "--rm", IMAGE, "oracle")


def test_the_image_holds_no_compiler_and_no_package_installer(engine: Engine, image: Path) -> None:
    script = "for tool in cc gcc g++ cmake pip; do if command -v $tool; then exit 1; fi; done"
    assert engine.docker("run", "--rm", "--entrypoint", "sh", IMAGE, "-c", script) == ""


def test_a_warm_model_answers_without_redis_scheduler_and_discovery(cluster: Cluster) -> None:
    question, expected = trained_answer("what-is-puna")
    body = {"model": "demo", "messages": [{"role": "user", "content": question}], "temperature": 0}
    warm = cluster.ask("/v1/chat/completions", body)
    cluster.compose("stop", "redis", "scheduler", "discovery")
    try:
        alone = cluster.ask("/v1/chat/completions", body)
    finally:
        cluster.compose("start", "redis", "discovery", "scheduler")
        cluster.wait_until_healthy(*ROLES)
    assert [reply["choices"][0]["message"]["content"] for reply in (warm, alone)] == [expected, expected]


def test_the_roles_stop_cleanly_when_asked(cluster: Cluster) -> None:
    """Last in the file: it stops the cluster."""
    containers = {role: cluster.compose("ps", "--quiet", role) for role in ROLES}
    cluster.compose("stop", "--timeout=30")
    formats = "{{.State.ExitCode}}"
    codes = {role: cluster.engine.docker("inspect", "--format", formats, name) for role, name in containers.items()}
    assert codes == dict.fromkeys(ROLES, "0")

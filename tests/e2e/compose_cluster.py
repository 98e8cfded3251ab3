"""docker-compose.yml with keys, two hosts and Prometheus, on an engine of the test's own."""

import itertools
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.container_image import ROOT, base_archive, collect_prometheus, collect_wheels, copy_source
from tests.e2e.docker_engine import Engine
from tests.e2e.engine_network import forwarded
from tests.waiting import wait_until

BASE, IMAGE, PROMETHEUS_IMAGE = "puna-base:test", "puna:test", "puna-prometheus:test"
PROJECT = "puna-test"
HOSTS = ("host", "host-2")
ROLES = ("redis", "discovery", "scheduler", *HOSTS, "gateway")
SERVICES = ("trust", *ROLES, "prometheus")
FILES = ("docker-compose.yml", "deploy/compose/keys.yml")
# User and group of each service.
USERS = {
    **dict.fromkeys(HOSTS, (10001, 10001)),
    **{
        name: (10002 + place, 10002 + place)
        for place, name in enumerate(("gateway", "scheduler", "discovery", "trust"))
    },
    "redis": (10006, 10006),
    "prometheus": (65534, 10007),
}
# Bounds for a machine whose two processors have much else to do; an idle one needs a twentieth of them.
HEALTHY_S = 240.0
SILENCE_S = 180.0
# One replica on each host, also while one of them is away; and that settings of the operator's reach the roles.
OWN_SETTINGS = "PUNA_MAX_LOADED_MODELS=1\n"
MODEL = "demo:latest"
SEEDS = itertools.count()  # no two streams are the same request: one that is refused says nothing of another
ONE_EACH = {"replicas_min": len(HOSTS), "replicas_max": len(HOSTS), "num_ctx": 2048, "num_thread": 1}


GATEWAY = "127.0.0.1:11434"


def build_images(engine: Engine, directory: Path) -> Path:
    """Build the images without any network. Returns the source that Puna's was built from, in `directory`.

    Raises:
        ImageUnavailable: their parts cannot be had here.
    """
    source, prometheus = directory / "source", directory / "prometheus"
    copy_source(source)
    collect_wheels(source / "wheels")
    collect_prometheus(prometheus)
    engine.docker("import", str(base_archive()), BASE)
    build = ("build", "--network=none", f"--build-arg=BASE_IMAGE={BASE}")
    engine.docker(*build, "--tag", PROMETHEUS_IMAGE, str(prometheus), timeout_s=100.0)
    engine.docker(
        *(*build, "--file", str(source / "deploy" / "Dockerfile"), "--tag", IMAGE),
        *("--build-arg=PIP_OPTIONS=--no-index", str(source)),
        timeout_s=400.0,
    )
    return source


def project_settings() -> dict[str, str]:
    """Return the settings that an operator writes into .env."""
    processors = sorted(os.sched_getaffinity(0))
    every = ",".join(map(str, processors))
    return {
        "COMPOSE_PROJECT_NAME": PROJECT,
        "COMPOSE_PROFILES": "cpu,second-host",
        "COMPOSE_FILE": ":".join(FILES),
        "GATEWAY_CPUS": str(min(2, len(processors))),
        "HEALTH_INTERVAL": "5s",
        "HOST_CPUS": "0.5",  # the rest is left to what is watched
        "HOST_CPUSET": every,
        "HOST_2_CPUSET": every,
        "HOST_MEMORY": "4g",
        "KEYS_DIRECTORY": "./keys",
        "PROMETHEUS_IMAGE": PROMETHEUS_IMAGE,
        "PUNA_IMAGE": IMAGE,
        "REDIS_IMAGE": IMAGE,
        "REDIS_USER": ":".join(map(str, USERS["redis"])),
    }


def trained_answer(question_id: str) -> tuple[str, str]:
    """Question and answer, word for word, that the demo model was trained on."""
    taught = json.loads((ROOT / "tools" / "demo_model" / "questions.json").read_text(encoding="utf-8"))["questions"]
    entry = next(entry for entry in taught if entry["id"] == question_id)
    return entry["messages"][-1]["content"], entry["content"]


def make_keys(engine: Engine, source: Path) -> dict[str, str]:
    """As deploy/README.md says: by the image, as its user, into ./keys. Returns the keys by owner."""
    folder = source / "keys"
    folder.mkdir(mode=0o700)
    os.chown(folder, *USERS["gateway"])
    user = ":".join(map(str, USERS["gateway"]))
    inside = (
        "run",
        "--rm",
        "--network",
        "none",
        "--user",
        user,
        "--volume",
        f"{folder}:/keys",
        "--entrypoint",
        "puna",
        IMAGE,
    )
    create = (*inside, "keys", "create", "--file", "/keys/keys.json")
    scopes = {
        "operator": ("infer", "models:read", "models:write", "admin:cluster", "admin:keys"),
        "prometheus": ("metrics",),
    }
    keys = {}
    for owner, allowed in scopes.items():
        words = (word for scope in allowed for word in ("--scope", scope))
        keys[owner] = engine.docker(*create, "--owner", owner, *words).splitlines()[0]
    metrics_key = folder / "metrics-key"
    metrics_key.write_text(keys["prometheus"], encoding="utf-8")
    os.chown(metrics_key, *USERS["prometheus"])
    return keys


def make_settings(source: Path, more: str = "") -> dict[str, str]:
    """The project's settings, with a file of settings for every role."""
    own = source / "own-settings.env"
    own.write_text(OWN_SETTINGS + more, encoding="utf-8")
    return project_settings() | {"SETTINGS_FILE": str(own)}


@dataclass(kw_only=True)
class ComposeCluster:
    """The running project. `client` asks its gateway with the operator's key."""

    engine: Engine
    source: Path
    client: httpx.Client
    api: httpx.Client  # of the engine
    settings: dict[str, str]

    def compose(self, *arguments: str, timeout_s: float = HEALTHY_S, settings: Mapping[str, str] | None = None) -> str:
        """Run docker-compose; `settings` are added to the project's."""
        together = self.settings | dict(settings or {})
        return self.engine.compose(*arguments, settings=together, directory=self.source, timeout_s=timeout_s)

    def inspect(self, service: str, *, project: str = PROJECT) -> dict[str, Any]:
        """Return the engine's description of a service's only container."""
        labels = [f"com.docker.compose.project={project}", f"com.docker.compose.service={service}"]
        filters = {"all": "true", "filters": json.dumps({"label": labels})}
        (found,) = self.api.get("/containers/json", params=filters).raise_for_status().json()
        described: dict[str, Any] = self.api.get(f"/containers/{found['Id']}/json").raise_for_status().json()
        return described

    def in_engine(self, *command: str, timeout_s: float = 60.0) -> str:
        """Run a command with the engine's processes and files, beside the containers and outside of them."""
        return self.engine.run_beside(*command, namespaces=("pid", "mount"), timeout_s=timeout_s)

    def wait_until_healthy(self, *services: str, project: str = PROJECT) -> None:
        def healthy() -> bool:
            return all(self.inspect(one, project=project)["State"]["Health"]["Status"] == "healthy" for one in services)

        wait_until(healthy, deadline_s=HEALTHY_S, what=f"{services} are healthy")

    def crash(self, service: str) -> None:
        """Kill its first process, as the kernel does; return when the engine has started it again and it is healthy.

        `docker kill` is an operator's wish, which the restart policy obeys by doing nothing.
        """
        before = self.inspect(service)["State"]
        self.in_engine("sh", "-c", f"kill -9 {before['Pid']}")
        wait_until(
            lambda: self.inspect(service)["State"]["StartedAt"] != before["StartedAt"],
            deadline_s=SILENCE_S,
            what=f"{service} is started again",
        )
        self.wait_until_healthy(service)

    def ask(self, question: str, *, model: str = MODEL) -> httpx.Response:
        body = {"model": model, "messages": [{"role": "user", "content": question}], "temperature": 0}
        return self.client.post("/v1/chat/completions", json=body)

    def said(self, question: str, *, model: str = MODEL) -> str:
        """The answer, or else status and text of the refusal: what a test that fails should show."""
        reply = self.ask(question, model=model)
        if reply.status_code != 200:
            return f"{reply.status_code} {reply.text}"
        return str(reply.json()["choices"][0]["message"]["content"])

    def answers(self, question: str, expected: str, *, model: str = MODEL) -> bool:
        """True if the right answer comes; false while the way there is broken."""
        try:
            return self.said(question, model=model) == expected
        except httpx.TransportError:
            return False

    def nodes_of(self, model: str = MODEL) -> list[str]:
        """The nodes on which replicas of a model are ready to serve, sorted."""
        answer = self.client.get("/puna/v1/placements")
        if answer.status_code != 200:
            return []
        replicas = answer.json()["placements"]
        return sorted(one["node"] for one in replicas if one["model"] == model and one["state"] == "ready")

    def models(self) -> set[str]:
        answer = self.client.get("/api/tags")
        return {one["name"] for one in answer.json()["models"]} if answer.status_code == 200 else set()


@contextmanager
def running_cluster(
    engine: Engine, source: Path, sockets: Path, *, more_settings: str = ""
) -> Iterator[ComposeCluster]:
    """Start the project of a source, with a replica of the demo model on each host; remove it at the end."""
    keys = make_keys(engine, source)
    headers = {"authorization": f"Bearer {keys['operator']}"}
    transport = httpx.HTTPTransport(uds=str(engine.socket))
    with (
        httpx.Client(transport=transport, base_url="http://docker", timeout=SILENCE_S) as api,
        reach(engine, GATEWAY, sockets, headers=headers) as client,
    ):
        settings = make_settings(source, more_settings)
        started = ComposeCluster(engine=engine, source=source, client=client, api=api, settings=settings)
        try:
            started.compose("up", "--detach", "--no-build", timeout_s=240.0)
            started.compose("up", "--detach", "--no-build", "prometheus")
            started.wait_until_healthy(*SERVICES)
            wait_until(lambda: MODEL in started.models(), deadline_s=HEALTHY_S, what="the demo model is found")
            started.client.put(f"/puna/v1/placements/{MODEL}", json=ONE_EACH).raise_for_status()
            wait_until(lambda: started.nodes_of() == list(HOSTS), deadline_s=HEALTHY_S, what="each host has a replica")
        except (AssertionError, RuntimeError):
            print(started.compose("logs", "--no-color", "--tail=60"))
            raise
        yield started
        started.compose("down", "--volumes", "--timeout=30")


@dataclass(kw_only=True)
class Stream:
    """One long answer after another, read by a thread of its own until the test leaves it or something goes wrong."""

    cluster: ComposeCluster
    body: dict[str, Any]
    tokens: int = 0
    broken: str = ""  # what went wrong
    _left: threading.Event = field(default_factory=threading.Event)

    def read(self) -> None:
        try:
            while not self._left.is_set() and not self.broken:
                self._read_answer()
        except httpx.HTTPError as error:
            self.broken = repr(error)

    def _read_answer(self) -> None:
        with self.cluster.client.stream("POST", "/api/generate", json=self.body, timeout=SILENCE_S) as response:
            for line in response.iter_lines():
                said = json.loads(line)
                if self._left.is_set() or said.get("done_reason") == "length":  # as long as answers may be
                    return
                if "error" in said or said.get("done"):
                    self.broken = line[:500]
                    return
                self.tokens += 1
        self.broken = f"ended without a last word, status {response.status_code}"

    def leave(self) -> None:
        self._left.set()


@contextmanager
def streams(cluster: ComposeCluster, count: int, *, end_tokens: list[int]) -> Iterator[list[Stream]]:
    """So many answers that go on for as long as somebody reads them; each has begun."""
    options = {
        "num_predict": 1_000_000,
        "temperature": 1.5,
        "repeat_penalty": 1.5,  # or the answer would loop, which ends it
        "logit_bias": {str(token): -100 for token in end_tokens},
    }
    running = [
        Stream(
            cluster=cluster, body={"model": MODEL, "prompt": "Tell me a story.", "options": options | {"seed": seed}}
        )
        for seed in itertools.islice(SEEDS, count)
    ]
    threads = [threading.Thread(target=stream.read) for stream in running]
    for thread in threads:
        thread.start()
    try:
        go_on(running, what="the streams have begun")
        yield running
    finally:
        for stream in running:
            stream.leave()
        for thread in threads:
            thread.join()


def go_on(running: list[Stream], *, what: str) -> None:
    """Wait until each stream has brought tokens that it had not when this was called."""
    seen = [stream.tokens for stream in running]

    def further() -> bool:
        assert not any(stream.broken for stream in running), [stream.broken for stream in running]
        return all(stream.tokens > before for stream, before in zip(running, seen, strict=True))

    wait_until(further, deadline_s=SILENCE_S, what=what)


@contextmanager
def reach(engine: Engine, address: str, directory: Path, **options: Any) -> Iterator[httpx.Client]:
    """A client of what is at `address` in the engine's network; the host in URLs is only a name."""
    with forwarded(engine.pid, address, directory / f"{address.replace(':', '-')}.sock") as path:
        transport = httpx.HTTPTransport(uds=str(path), verify=False)
        with httpx.Client(transport=transport, base_url="http://gateway", timeout=SILENCE_S, **options) as client:
            yield client


def all_of(conditions: dict[str, Callable[[], bool]], *, deadline_s: float) -> None:
    """Wait until every one of them held once; name those that did not."""
    missing = dict(conditions)

    def done() -> bool:
        for name in [name for name, holds in missing.items() if holds()]:
            del missing[name]
        return not missing

    try:
        wait_until(done, deadline_s=deadline_s, what="all of them")
    except AssertionError as error:
        raise AssertionError(f"not within {deadline_s} s: {sorted(missing)}") from error

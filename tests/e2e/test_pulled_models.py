"""Models that are pulled: with the official client, over gRPC, with `puna`; pulls that are refused or interrupted."""

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import ollama
import pytest

from common.errors import PermissionDenied
from gateway.client import Client
from tests.cluster import Cluster, start_cluster
from tests.e2e.stores import QUESTION, ROOT, names, puna
from tests.registry import BINARY, RunningRegistry, needs_registry, push, running_registry


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRegistry | None]:
    if BINARY is None:
        yield None
        return
    with running_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture(scope="module")
def silent() -> Iterator[str]:
    """A registry that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, registry: RunningRegistry | None, silent: str) -> Iterator[Cluster]:
    """A cluster whose models these tests may change; it may pull from the registries of this module only."""
    home = tmp_path_factory.mktemp("store") / "home"
    hosts = [silent, *([registry.host] if registry else [])]
    running = start_cluster(home, PUNA_REGISTRIES=",".join(f"http://{host}" for host in hosts))
    try:
        yield running
    finally:
        running.stop()


@needs_registry
def test_a_model_is_pulled_and_can_be_used_at_once(
    store: Cluster, client: ollama.Client, registry: RunningRegistry, demo_file: Path
) -> None:
    pushed = push(registry, "library/pulled", demo_file.read_bytes())
    steps = list(client.pull(pushed.name, insecure=True, stream=True))
    statuses = [str(step.status) for step in steps]
    assert statuses[0] == "pulling manifest"
    assert statuses[-1] == "success"
    assert names(client)[pushed.name] == hashlib.sha256(pushed.manifest).hexdigest()
    assert "temperature                    0.5" in str(client.show(pushed.name).parameters)
    assert client.pull(pushed.name, insecure=True).status == "success"
    options = {"num_predict": 3, "temperature": 0}
    answer = store.post(
        "/api/generate", {"model": pushed.name, "prompt": QUESTION, "stream": False, "options": options}
    )
    assert answer.json()["done_reason"] == "length"
    client.delete(pushed.name)


@needs_registry
async def test_a_model_is_pulled_over_grpc_and_from_the_command_line(
    store: Cluster, client: ollama.Client, registry: RunningRegistry, demo_bytes: bytes
) -> None:
    pushed = push(registry, "library/again", demo_bytes)
    async with Client(f"127.0.0.1:{store.grpc_port}") as puna_client:
        steps = [step async for step in puna_client.pull_model(pushed.name, insecure=True)]
        assert steps[-1].status == "success"
        with pytest.raises(PermissionDenied):
            _ = [step async for step in puna_client.pull_model("elsewhere.example/library/x")]
    client.delete(pushed.name)
    said = puna(store, "pull", pushed.name, "--insecure")
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.splitlines()[-1] == "success"
    assert f"{pushed.digest[:12]} is there" in said.stdout
    lines = puna(store, "pull", pushed.name, "--insecure", "--json").stdout.splitlines()
    assert json.loads(lines[-1]) == {"status": "success"}
    assert puna(store, "rm", pushed.name).stdout == f"deleted {pushed.name}\n"


def test_a_registry_off_the_list_is_refused(store: Cluster) -> None:
    answer = store.post("/api/pull", {"model": "elsewhere.example/library/x", "stream": False})
    assert answer.status_code == 403
    assert puna(store, "pull", "elsewhere.example/library/x").returncode == 4


def test_a_pull_that_is_interrupted_says_what_stays(store: Cluster, silent: str) -> None:
    command = [sys.executable, "-m", "cli.main", "pull", f"{silent}/library/x", "--insecure"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env=os.environ | {"PUNA_HOST": store.url},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "pulling manifest\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (
        errors.strip() == f"puna: stopped; what has come stays, and `puna pull {silent}/library/x` goes on from there"
    )

"""A whole cluster as `puna up` starts it, for end-to-end tests."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx

from protos import inference_pb2, inference_pb2_grpc
from tests.known_speed import note_ram_speed
from tests.ports import free_port
from tests.waiting import wait_until

START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 60.0


def metric_sum(page: str, name: str) -> float:
    """The sum of all samples of a metric on a Prometheus page; 0 if it is not there."""
    rows = (line.rsplit(" ", 1) for line in page.splitlines() if line.split("{")[0].split(" ")[0] == name)
    return sum(float(value) for _, value in rows)


@dataclass(kw_only=True)
class Cluster:
    """One running `puna up`."""

    home: Path
    port: int
    grpc_port: int
    process: subprocess.Popen[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def models(self) -> Path:
        return self.home / "models"

    def post(self, path: str, body: Any, **more: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=60, **more)

    def runners(self) -> list[dict[str, Any]]:
        """Every runner that the inventory knows, as JSON; waits while the scheduler is away."""
        answers: list[httpx.Response] = []

        def answered() -> bool:
            answers.append(httpx.get(self.url + "/puna/v1/nodes", timeout=60))
            return answers[-1].status_code == 200

        wait_until(answered, deadline_s=60, what="the inventory is shown")
        nodes = answers[-1].json()["nodes"]
        return [runner for node in nodes for runner in node.get("runners", [])]

    def runner_metrics(self, model: str = "demo") -> str:
        """The Prometheus pages of a model's runners; those of other models may be leaving."""
        addresses = [one["metrics_address"] for one in self.runners() if one["model"] == f"{model}:latest"]
        return "\n".join(httpx.get(f"http://{address}/metrics", timeout=60).text for address in addresses)

    def slots_busy(self) -> float:
        return metric_sum(self.runner_metrics(), "puna_runner_slots_busy")

    def pid_of(self, service: str) -> int:
        """Process id of a service as the supervisor recorded it; 0 while it is down."""
        state = json.loads((self.home / "run" / "puna.json").read_text())
        pid = state["services"].get(service, {}).get("pid") or 0
        return pid if Path(f"/proc/{pid}").exists() else 0

    def members(self) -> list[int]:
        """Processes that belong to this cluster, by their environment or command line."""
        return [pid for pid in _pids() if pid != os.getpid() and self._owns(pid)]

    def _owns(self, pid: int) -> bool:
        try:
            text = Path(f"/proc/{pid}/environ").read_bytes() + Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False
        return str(self.home).encode() in text and pid != os.getpid()

    def stop(self) -> None:
        """Interrupt it as Ctrl-C does, and check that nothing is left."""
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(STOP_DEADLINE_S)
        finally:
            self.process.kill()
        wait_until(lambda: not self.members(), deadline_s=20, what="no process left after Ctrl-C")


def start_cluster(home: Path, *, arguments: Sequence[str] = (), output: str = "", **environment: str) -> Cluster:
    """Start `puna up` on free ports, with more arguments; wait until a model can load. `output`: path of its output."""
    note_ram_speed(home)
    port, grpc_port = free_port(), free_port()
    command = [sys.executable, "-m", "cli.main", "up", "--port", str(port), "--grpc-port", str(grpc_port)]
    with Path(output or home.parent / f"{home.name}.up.log").open("w") as log:
        process = subprocess.Popen(
            [*command, *arguments, "--home", str(home)],
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"PUNA_CONTEXT_LENGTH": "1024"} | environment,
            start_new_session=True,
        )
    cluster = Cluster(home=home, port=port, grpc_port=grpc_port, process=process)

    def ready() -> bool:
        assert process.poll() is None, (home.parent / f"{home.name}.up.log").read_text()
        try:
            answer = httpx.get(cluster.url + "/readyz", timeout=10)
            can_load = answer.status_code == 200 and "waits_for" not in answer.json()
            return can_load and _has_demo(cluster, environment.get("PUNA_API_KEY", "any"))
        except httpx.TransportError:
            return False

    try:
        wait_until(ready, deadline_s=START_DEADLINE_S, what="puna up is ready")
    except BaseException:
        if process.poll() is None:
            cluster.stop()
        raise
    return cluster


def _has_demo(cluster: Cluster, key: str) -> bool:
    tags = httpx.get(cluster.url + "/api/tags", headers={"x-api-key": key}, timeout=30).json()
    return any(model["name"].startswith("demo") for model in tags["models"])


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def end_tokens(cluster: Cluster) -> list[int]:
    """Ids of the demo model's end tokens."""
    with grpc.insecure_channel(f"127.0.0.1:{cluster.grpc_port}") as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        request = inference_pb2.TokenizeTextRequest(model="demo", text="<|im_end|><|endoftext|>")
        return list(stub.Tokenize(request, timeout=60).ids)


def endless(cluster: Cluster) -> dict[str, Any]:
    """Options of an answer of the demo model that goes on for as long as somebody reads it."""
    return {
        "num_predict": 1_000_000,
        "temperature": 1.5,
        "repeat_penalty": 1.5,  # or the answer would loop, which ends it
        "seed": 7,
        "logit_bias": {str(token): -100 for token in end_tokens(cluster)},
    }


def trained_answers() -> dict[str, str]:
    """Return the questions that the demo model was trained on, of a single turn, with their exact answers."""
    root = Path(__file__).resolve().parent.parent
    taught = json.loads((root / "tools" / "demo_model" / "questions.json").read_text(encoding="utf-8"))
    return {
        question["messages"][0]["content"]: question["text"]
        for question in taught["questions"]
        if len(question["messages"]) == 1 and not question["tools"] and question["reasoning"] is None
    }

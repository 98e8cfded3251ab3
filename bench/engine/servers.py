"""The two servers under comparison, each one process with the same model, slots, context and threads."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import grpc
import httpx
from google.protobuf import json_format
from prometheus_client.parser import text_string_to_metric_families

from bench.engine.llama_client import LlamaServerConnection
from bench.engine.processes import host_cpu_s
from bench.engine.runner_client import RunnerConnection
from bench.engine.streams import Ask, TokenStream, Vectors
from bench.machine import ROOT, shown_command
from cli.cluster.plan import FreePort
from protos import cluster_pb2, runner_pb2, runner_pb2_grpc
from runner.core.host.environment import child_environment
from runner.engine.threads.engine_thread import ENGINE_THREAD

OURS, PEER = "runner", "llama-server"
READY_WITHIN_S = 300.0
_STOP_WITHIN_S = 30.0
_LOOK_INTERVAL_S = 0.005
_ANSWER_WITHIN_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes that both servers are started with. 0 threads: as many as our runner chooses for itself."""

    slots: int
    context_tokens: int  # of one slot
    threads: int = 0
    embeddings: bool = False
    # Everything on one device, by its id and the number of layers, output layer included. Empty: on the CPU.
    device_id: str = ""
    device_layers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCounts:
    """Counters of our runner since its start; see runner/metrics.py."""

    decode_calls: float
    decode_s: float
    gap_s: float
    host_cpu_s: float  # of the threads that do not compute


class Server(Protocol):
    """A loaded server."""

    name: str
    pid: int
    load_s: float  # from the start of the process until it answered
    about: dict[str, Any]

    async def generate(self, asks: Sequence[Ask]) -> list[TokenStream]:
        """All at once."""

    async def embed(self, inputs: Sequence[Sequence[int]]) -> Vectors:
        """One request with all of them."""

    def step_counts(self) -> StepCounts | None:
        """None where a server does not count its steps."""


@dataclass(kw_only=True)
class RunnerServer:
    """Our runner."""

    host: str
    port: int
    pid: int
    load_s: float
    metrics_url: str
    about: dict[str, Any]
    name: str = OURS

    @property
    def threads(self) -> int:
        """Return the number of threads that the runner reports."""
        return int(self.about["layout"]["threads"])

    async def generate(self, asks: Sequence[Ask]) -> list[TokenStream]:
        """On one connection."""
        async with RunnerConnection(self.host, self.port, deadline_s=_ANSWER_WITHIN_S) as connection:
            return await connection.generate(asks)

    async def embed(self, inputs: Sequence[Sequence[int]]) -> Vectors:
        """One call."""
        async with RunnerConnection(self.host, self.port, deadline_s=_ANSWER_WITHIN_S) as connection:
            return await connection.embed(inputs)

    def step_counts(self) -> StepCounts | None:
        """From its Prometheus page."""
        page = httpx.get(self.metrics_url, trust_env=False, timeout=30).text
        values = {
            sample.name: sample.value for family in text_string_to_metric_families(page) for sample in family.samples
        }
        return StepCounts(
            decode_calls=values["puna_runner_decode_calls_total"],
            decode_s=values["puna_runner_decode_seconds_total"],
            gap_s=values["puna_runner_decode_gap_seconds_total"],
            host_cpu_s=host_cpu_s(self.pid, engine_thread=ENGINE_THREAD),
        )


@dataclass(kw_only=True)
class LlamaServer:
    """llama.cpp's own server."""

    host: str
    port: int
    pid: int
    load_s: float
    about: dict[str, Any]
    name: str = PEER

    async def generate(self, asks: Sequence[Ask]) -> list[TokenStream]:
        """Send the requests at once, each on a connection of its own."""
        return await LlamaServerConnection(self.host, self.port, deadline_s=_ANSWER_WITHIN_S).generate(asks)

    async def embed(self, inputs: Sequence[Sequence[int]]) -> Vectors:
        """One request."""
        return await LlamaServerConnection(self.host, self.port, deadline_s=_ANSWER_WITHIN_S).embed(inputs)

    def step_counts(self) -> StepCounts | None:
        """Return None: this server counts tokens, not steps."""
        return None


@contextmanager
def running_runner(model: Path, sizes: Sizes) -> Iterator[RunnerServer]:
    """`runner serve` with the environment that a host gives it."""
    layout: dict[str, Any] = {
        "slots": sizes.slots,
        "context_tokens": sizes.context_tokens,
        "threads": sizes.threads,
    }
    if sizes.device_id:
        layout["devices"] = [{"device_id": sizes.device_id, "layer_count": sizes.device_layers}]
    command = (
        *(sys.executable, "-m", "runner", "serve", "--model", str(model)),
        *("--layout", json.dumps(layout), "--metrics-listen", "127.0.0.1:0"),
    )
    with _running(command, child_environment(os.environ), first_line=True) as (process, hello, started_s):
        greeting = json.loads(hello)
        with grpc.insecure_channel(greeting["address"]) as channel:
            stub = runner_pb2_grpc.RunnerStub(channel)
            for status in stub.WatchLoad(runner_pb2.WatchLoadRequest(), timeout=READY_WITHIN_S):
                if status.state == cluster_pb2.RUNNER_STATE_READY:
                    break
                if status.state == cluster_pb2.RUNNER_STATE_ERROR:
                    raise ServerDied(f"the runner could not load the model: {status.error.message}")
            load_s = time.perf_counter() - started_s
            info = stub.GetInfo(runner_pb2.GetInfoRequest(), timeout=30)
        host, _, port = greeting["address"].rpartition(":")
        yield RunnerServer(
            host=host,
            port=int(port),
            pid=process.pid,
            load_s=load_s,
            metrics_url=f"http://{greeting['metrics_address']}/metrics",
            about={
                "command": shown_command(command),
                "engine_build": info.engine_build,
                "layout": json_format.MessageToDict(info.layout, preserving_proto_field_name=True),
            },
        )


def find_llama_server() -> Path | None:
    """Return what tools/peers/build_llama_server.sh built; None: nothing."""
    return next(iter(sorted((ROOT / ".peers").glob("llama_cpp-*/bin/llama-server"))), None)


@contextmanager
def running_llama_server(
    program: Path, model: Path, sizes: Sizes, *, threads: int, options: Sequence[str] = ()
) -> Iterator[LlamaServer]:
    """llama-server. Its second cache in host RAM is off: it would copy caches for prompts that never return."""
    http = FreePort().address()
    host, _, port = http.rpartition(":")
    purpose = ("--embeddings", "--pooling", "mean") if sizes.embeddings else ("--cache-ram", "0")
    command = (
        str(program),
        *("--model", str(model), "--host", host, "--port", port),
        *("--parallel", str(sizes.slots), "--ctx-size", str(sizes.slots * sizes.context_tokens)),
        *("--threads", str(threads), "--threads-batch", str(threads), "--no-webui"),
        *("--n-gpu-layers", str(sizes.device_layers)),
        *(() if sizes.device_id else ("--device", "none")),
        *purpose,
        *options,
    )
    with _running(command, child_environment(os.environ)) as (process, _, started_s):
        _wait_until_healthy(f"http://{http}/health", process)
        load_s = time.perf_counter() - started_s
        properties = httpx.get(f"http://{http}/props", trust_env=False, timeout=30).json()
        yield LlamaServer(
            host=host,
            port=int(port),
            pid=process.pid,
            load_s=load_s,
            about={"command": shown_command(command), "engine_build": properties.get("build_info")},
        )


class ServerDied(Exception):
    """A server could not be started, or ended; the message has its last words."""


@contextmanager
def _running(
    command: tuple[str, ...], environment: dict[str, str], *, first_line: bool = False
) -> Iterator[tuple[subprocess.Popen[bytes], str, float]]:
    """Run a process; yield it, its first line on standard output if one is expected, and the time of its start."""
    with tempfile.TemporaryFile() as log:
        started_s = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE if first_line else log, stderr=log
        )
        try:
            line = ""
            if process.stdout is not None:
                line = process.stdout.readline().decode()
                if not line:
                    raise ServerDied("the runner ended before it said where it listens")
            yield process, line, started_s
        except BaseException:
            log.seek(0)
            print(log.read()[-3000:].decode(errors="replace"), file=sys.stderr)
            raise
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _wait_until_healthy(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + READY_WITHIN_S
    with httpx.Client(trust_env=False, timeout=5) as client:
        while process.poll() is None and time.monotonic() < deadline_s:
            try:
                if client.get(url).status_code == httpx.codes.OK:
                    return
            except httpx.TransportError:
                pass
            time.sleep(_LOOK_INTERVAL_S)
    raise ServerDied(f"{url} does not answer")

"""The two servers under comparison, each started with the same model, context, slots and threads."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
from google.protobuf import json_format

from bench.machine import ROOT, shown_command
from cli.cluster.plan import FreePort
from protos import runner_pb2, runner_pb2_grpc

_READY_WITHIN_S = 120.0
_STOP_WITHIN_S = 60.0
_LOOK_INTERVAL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes that both servers are started with."""

    slots: int
    context_tokens: int  # of one slot


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A server that answers, and how it was started."""

    name: str
    host: str
    port: int
    home: Path
    command: tuple[str, ...]
    # What it says about itself: versions, layouts.
    about: dict[str, Any]


@contextmanager
def running_cluster(models: Path, sizes: Sizes, **settings: str) -> Iterator[RunningServer]:
    """`puna up` with a directory of models, and with more settings."""
    with tempfile.TemporaryDirectory(prefix="puna-bench-") as directory:
        http, grpc = FreePort().address(), FreePort().address()
        host, _, port = http.rpartition(":")
        command = (sys.executable, "-m", "cli.main", "up", "--port", port, "--grpc-port", grpc.rpartition(":")[2])
        environment = {
            "PUNA_HOME": directory,
            "PUNA_MODELS": str(models),
            "PUNA_NUM_PARALLEL": str(sizes.slots),
            "PUNA_CONTEXT_LENGTH": str(sizes.context_tokens),
            "PUNA_KEEP_ALIVE": "-1",
            "PUNA_MAX_QUEUE": "512",
            **settings,
        }
        with _running(command, environment, Path(directory) / "up.log"):
            wait_for(f"http://{http}/readyz")
            about = {"settings": environment | {"PUNA_HOME": "(temporary)", "PUNA_MODELS": models.name}}
            yield RunningServer(
                name="puna",
                host=host,
                port=int(port),
                home=Path(directory),
                command=shown_command(command),
                about=about,
            )


@contextmanager
def running_llama_server(program: Path, model: Path, sizes: Sizes, *, threads: int) -> Iterator[RunningServer]:
    """llama-server with one model. The cache in host RAM is off: it would copy caches for prompts that never return."""
    with tempfile.TemporaryDirectory(prefix="puna-bench-") as directory:
        http = FreePort().address()
        host, _, port = http.rpartition(":")
        command = (
            str(program),
            *("--model", str(model), "--host", host, "--port", port),
            *("--parallel", str(sizes.slots), "--ctx-size", str(sizes.slots * sizes.context_tokens)),
            *("--threads", str(threads), "--threads-batch", str(threads)),
            *("--cache-ram", "0", "--no-webui", "--metrics"),
        )
        with _running(command, {}, Path(directory) / "server.log"):
            wait_for(f"http://{http}/health")
            properties = httpx.get(f"http://{http}/props", trust_env=False, timeout=30).json()
            about = {
                "build": properties.get("build_info"),
                "slots": properties.get("total_slots"),
            }
            yield RunningServer(
                name="llama-server",
                host=host,
                port=int(port),
                home=Path(directory),
                command=shown_command(command),
                about=about,
            )


def loaded_layout(home: Path) -> dict[str, Any]:
    """Return the layout of the loaded model with every automatic value resolved, as its runner reports it."""
    (address,) = (home / "runners").glob("*.sock")
    with grpc.insecure_channel(f"unix:{address}") as channel:
        info = runner_pb2_grpc.RunnerStub(channel).GetInfo(runner_pb2.GetInfoRequest(), timeout=30)
    return {
        "engine_build": info.engine_build,
        **json_format.MessageToDict(info.layout, preserving_proto_field_name=True),
    }


@contextmanager
def _running(command: tuple[str, ...], environment: dict[str, str], log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **environment}, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        threading.Thread(target=_report_death, args=(process, log), daemon=True).start()
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _report_death(process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Print the error of a server that died, before the measurement fails on it."""
    if process.wait() > 0:
        print(f"{process.args!r} ended:\n{log.read_text(errors='replace')[-2000:]}", file=sys.stderr)


def wait_for(url: str) -> None:
    """Wait until a URL answers 200."""
    wait_until(lambda: httpx.get(url, trust_env=False, timeout=5).status_code == httpx.codes.OK, what=url)


def wait_until(condition: Callable[[], bool], *, what: str) -> None:
    """Poll until the condition holds; a connection that fails counts as no.

    Raises:
        TimeoutError: it does not hold within two minutes.
    """
    deadline_s = time.monotonic() + _READY_WITHIN_S
    while True:
        try:
            if condition():
                return
        except httpx.TransportError:
            pass
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{what} is not ready within {_READY_WITHIN_S:.0f} s")
        time.sleep(_LOOK_INTERVAL_S)

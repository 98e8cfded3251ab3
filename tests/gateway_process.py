"""A gateway in a process of its own, between a scripted scheduler and a scripted runner that live in a thread here."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from protos import cluster_pb2, discovery_pb2, runner_pb2, scheduler_pb2
from runner.serve.constraints import ConstraintReader, constraint_of
from tests.engines.fake_model import FakeVocabulary
from tests.integration.gateway.scripted import MODEL_NAME, ScriptedRunner, ScriptedScheduler, scripted_model
from tests.real_store import RealStore, open_store
from tests.waiting import wait_until

EMBEDDER = "embedder:latest"
SEER = "seer:latest"
RANKER = "ranker:latest"
_READY_S_MAX = 60.0
_STOP_S_MAX = 20.0


@dataclass(frozen=True, slots=True)
class GatewayProcess:
    """Running gateway: its process, its addresses and its log."""

    process: subprocess.Popen[bytes]
    host: str
    port: int
    grpc_address: str
    log: Path

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def rss_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def is_alive(self) -> bool:
        return self.process.poll() is None


class LintingRunner(ScriptedRunner):
    """Reads constraints as a real runner does, and then answers by script."""

    async def Generate(  # noqa: N802
        self, request: runner_pb2.GenerateRequest, context: Any
    ) -> AsyncIterator[runner_pb2.GenerateEvent]:
        constraint = constraint_of(request)
        if constraint is not None:
            await asyncio.to_thread(ConstraintReader().read_now, constraint, None, FakeVocabulary())
        async for event in super().Generate(request, context):
            yield event


@dataclass(eq=False, kw_only=True)
class SchedulerOfOneStore(ScriptedScheduler):
    """Its one node has a real store, and says that it has the scripted models."""

    store: RealStore

    async def ListNodes(  # noqa: N802
        self, request: scheduler_pb2.ListNodesRequest, context: Any
    ) -> discovery_pb2.Inventory:
        inventory = await super().ListNodes(request, context)
        inventory.nodes[0].address = self.store.address
        inventory.nodes[0].models.extend(cluster_pb2.Model(name=name) for name in self.models)
        return inventory


class _Surroundings:
    """The scripted services and a real store, on an event loop in a thread."""

    def __init__(self, directory: Path) -> None:
        self.address = ""
        self._directory = directory
        self._loop = asyncio.new_event_loop()
        self._ready, self._stop = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="surroundings")

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(30)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        models = {
            MODEL_NAME: scripted_model(),
            EMBEDDER: scripted_model(EMBEDDER, capabilities=["embedding"], chat_template=""),
            RANKER: scripted_model(RANKER, capabilities=["rerank"], chat_template=""),
            SEER: scripted_model(SEER, capabilities=["completion", "vision"]),
        }
        store = await open_store(self._directory)
        runner, scheduler = LintingRunner(context_tokens=200_000), SchedulerOfOneStore(models=models, store=store)
        await runner.start()
        scheduler.replicas = {name: [runner] for name in models}
        await scheduler.start()
        self.address = scheduler.address
        self._ready.set()
        await self._stop.wait()
        await scheduler.stop()
        await runner.stop()
        await store.close()


@contextmanager
def gateway_process(directory: Path, *, prefix: Sequence[str] = (), **settings: str) -> Iterator[GatewayProcess]:
    """Runs inside; `settings` are names of the environment without PUNA_, `prefix` is a command that starts it."""
    surroundings = _Surroundings(directory / "store")
    surroundings.start()
    log = directory / "gateway.log"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PUNA_")},
        "PUNA_HOST": "127.0.0.1:0",
        "PUNA_GRPC_HOST": "127.0.0.1:0",
        "PUNA_SCHEDULER_ADDRESS": surroundings.address,
        "PUNA_HOME": str(directory),
        **{f"PUNA_{name.upper()}": value for name, value in settings.items()},
    }
    try:
        with log.open("wb") as output:
            process = subprocess.Popen([*prefix, sys.executable, "-m", "gateway"], env=environment, stderr=output)
        try:
            yield _ready(process, log)
        finally:
            process.terminate()
            try:
                process.wait(_STOP_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    finally:
        surroundings.stop()


def _ready(process: subprocess.Popen[bytes], log: Path) -> GatewayProcess:
    found: dict[str, str] = {}

    def is_ready() -> bool:
        assert process.poll() is None, log.read_text()
        for line in log.read_text().splitlines():
            event = json.loads(line) if line.startswith("{") else {}
            if event.get("event") == "gateway.ready":
                found.update(event)
        return bool(found) and httpx.get(f"http://{found['http']}/readyz", timeout=60).status_code == 200

    wait_until(is_ready, deadline_s=_READY_S_MAX, what="the gateway is ready")
    host, _, port = found["http"].rpartition(":")
    return GatewayProcess(process, host, int(port), found["grpc"], log)

"""A real gateway between real clients and a scripted cluster."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
import ollama
import openai
import pytest

from common.sandbox.worker_pool import WorkerPool
from gateway.app import RunningGateway, running_gateway
from gateway.settings import GatewaySettings
from scheduler.client import SchedulerClient
from tests.integration.gateway.scripted import MODEL_NAME, ScriptedRunner, ScriptedScheduler
from tests.waiting import Stopwatch, next_look

T = TypeVar("T")
WAIT_S = 60.0
LOOK_AGAIN_S = 0.005


async def eventually(condition: Callable[[], bool], deadline_s: float = WAIT_S) -> None:
    """Return once the condition holds; fails at the deadline."""
    watch = Stopwatch()
    while not condition():  # what is waited for has no event of its own
        assert not watch.is_past(deadline_s), f"not within {deadline_s} s"
        await next_look(LOOK_AGAIN_S)


@dataclass
class Cluster:
    """Everything a test may want to touch."""

    gateway: RunningGateway
    scheduler: ScriptedScheduler
    runner: ScriptedRunner
    http: httpx.AsyncClient
    openai: openai.AsyncOpenAI
    ollama: ollama.AsyncClient

    @property
    def url(self) -> str:
        return f"http://{self.gateway.http_address}"


StartCluster = Callable[..., Any]


@pytest.fixture(scope="session", autouse=True)
def _workers_start_when_they_are_used() -> Iterator[None]:
    """Start no workers ahead: most tests render in one of the two, or in none."""

    async def start(pool: WorkerPool) -> None:
        del pool

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WorkerPool, "start", start)
        yield


@asynccontextmanager
async def started_cluster(
    *,
    scheduler: ScriptedScheduler | None = None,
    runner: ScriptedRunner | None = None,
    warm: bool = True,
    drain_s: float = 0.2,
    **settings: Any,
) -> AsyncIterator[Cluster]:
    """A gateway, a scheduler and a runner; `warm`: the runner is in the routes already."""
    scheduler, runner = scheduler or ScriptedScheduler(), runner or ScriptedRunner()
    async with AsyncExitStack() as stack:
        await runner.start()
        stack.push_async_callback(runner.stop)
        await scheduler.start()
        stack.push_async_callback(scheduler.stop)
        if warm:
            scheduler.replicas[MODEL_NAME] = [runner]
        else:
            scheduler.spare.append(runner)
        client = await stack.enter_async_context(SchedulerClient(scheduler.address))
        values = {"host": "127.0.0.1:0", "grpc_host": "127.0.0.1:0"} | settings
        gateway = await stack.enter_async_context(
            running_gateway(GatewaySettings(**values), scheduler=client, drain_s=drain_s)
        )
        url = f"http://{gateway.http_address}"
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=WAIT_S))
        openai_client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=WAIT_S)
        stack.push_async_callback(openai_client.close)
        ollama_client = ollama.AsyncClient(host=url, timeout=WAIT_S)
        stack.push_async_callback(ollama_client._client.aclose)
        await eventually(lambda: gateway.service.inference.models.routes.heard)
        yield Cluster(gateway, scheduler, runner, http, openai_client, ollama_client)


async def read_alone(runner: ScriptedRunner, stream: Awaitable[AsyncIterator[T]], *, before: int = 0) -> list[T]:
    """Read a stream to which the runner adds a token once the one before is read; `before`: chunks without tokens."""
    read: list[T] = []

    def wait_for(count: int) -> Callable[[ScriptedRunner], Awaitable[None]]:
        return lambda _: eventually(lambda: len(read) >= count)

    runner.after_piece = {index: wait_for(before + index + 1) for index in range(len(runner.pieces))}
    async for one in await stream:
        read.append(one)  # noqa: PERF401  # watched while it grows
    return read


@pytest.fixture(autouse=True)
def _tokens_go_on_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scripted runner takes no time for a step: tokens would go on together, as those that a busy gateway reads."""
    monkeypatch.setattr("runner.multiplexer.QUIET_PASSES", 0)


@pytest.fixture(params=[True, False], ids=["one call", "a call each"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run with runners of this build, and with those of earlier builds, which do not multiplex."""
    monkeypatch.setattr(ScriptedRunner, "multiplexes", request.param)


@pytest.fixture
def start_cluster() -> StartCluster:
    """Start a cluster of the test's own making; an asynchronous context."""
    return started_cluster


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """A warm cluster with one runner."""
    async with started_cluster() as running:
        yield running

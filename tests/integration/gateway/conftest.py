"""A real gateway between real clients and a scripted cluster."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import ollama
import openai
import pytest

from gateway.app import RunningGateway, running_gateway
from gateway.settings import GatewaySettings
from scheduler.client import SchedulerClient
from tests.integration.gateway.scripted import MODEL_NAME, ScriptedRunner, ScriptedScheduler
from tests.waiting import Stopwatch, next_look

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

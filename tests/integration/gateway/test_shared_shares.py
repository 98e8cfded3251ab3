"""Shares of tenants over two gateways that have a real Redis in common, and without it."""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import REGISTRY

from common.trust.roles import Role
from gateway.app import running_gateway
from gateway.core.dispatch.work_limit import LIMIT_MAX
from gateway.settings import GatewaySettings
from scheduler.client import SchedulerClient
from tests.integration.gateway.conftest import Cluster, eventually, started_cluster
from tests.integration.gateway.scripted import ScriptedRunner
from tests.integration.gateway.test_gateway_keys import CHAT, Keys, bearer
from tests.redis_server import redis_server
from tests.waiting import next_look

# Of each tenant at each of its gateways: more than there are slots.
CLIENTS = 8
# An answer takes so long, and so many are counted.
ANSWER_S = 0.02
ANSWERS = 120
# Answers of the tenants differ in length: their tokens are to be equal, not their requests.
LENGTHS = {"wide": 4, "narrow": 8}


async def take_time(_runner: ScriptedRunner) -> None:
    """As an engine would."""
    await next_look(ANSWER_S)


def sharing_gateways() -> float | None:
    return REGISTRY.get_sample_value("puna_gateway_sharing_gateways")


def left_slots() -> float:
    return REGISTRY.get_sample_value("puna_gateway_left_slots_total") or 0.0


@asynccontextmanager
async def second_gateway(first: Cluster, **settings: Any) -> AsyncIterator[str]:
    """Another gateway of the same cluster; its address."""
    values = GatewaySettings(host="127.0.0.1:0", grpc_host="127.0.0.1:0", **settings)
    async with (
        SchedulerClient(first.scheduler.address) as scheduler,
        running_gateway(values, scheduler=scheduler, drain_s=0.2) as gateway,
    ):
        await eventually(lambda: gateway.service.inference.models.routes.heard)
        yield f"http://{gateway.http_address}"


class Load:
    """Clients that each ask again once they have their answer."""

    def __init__(self, keys: dict[str, str]) -> None:
        self.keys = keys
        self.tokens = Counter[str]()
        self.answers = 0
        self.failed: list[str] = []

    async def client(self, url: str, tenant: str) -> None:
        body = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": LENGTHS[tenant]}
        async with httpx.AsyncClient(base_url=url, headers=bearer(self.keys[tenant]), timeout=60.0) as client:
            while True:
                response = await client.post(CHAT, json=body)
                if response.status_code != 200:
                    self.failed.append(response.text)
                    return
                self.answers += 1
                self.tokens[tenant] += response.json()["usage"]["total_tokens"]

    async def share_of(self, tenant: str) -> float:
        """Return the part of the tokens that a tenant gets from now on."""
        before, until = self.tokens.copy(), self.answers + ANSWERS
        await eventually(lambda: self.answers >= until or bool(self.failed))
        assert self.failed == []
        return (self.tokens[tenant] - before[tenant]) / (self.tokens.total() - before.total())

    @asynccontextmanager
    async def running(self, places: list[tuple[str, str]]) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self.client(*place)) for place in places for _ in range(CLIENTS)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_tenant_at_two_gateways_gets_no_more_than_one_at_a_single_gateway_until_redis_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.replicas.share_exchange.EXCHANGE_S", 0.05)
    # Clients, gateways and runner share one event loop here: none is refused because that is slow.
    monkeypatch.setattr("gateway.core.dispatch.work_limit.LIMIT_MIN", LIMIT_MAX)
    file = Keys(tmp_path / "keys.json", capsys)
    load = Load({tenant: file.create(tenant) for tenant in LENGTHS})
    runner = ScriptedRunner(pieces=[" word"] * 8, before=take_time)
    async with redis_server() as server:
        settings: dict[str, Any] = {"api_keys_file": str(file.path), "redis_url": server.url_of(Role.GATEWAY)}
        async with (
            started_cluster(runner=runner, **settings) as cluster,
            second_gateway(cluster, **settings) as second,
            load.running([(cluster.url, "wide"), (cluster.url, "narrow"), (second, "wide")]),
        ):
            await eventually(lambda: sharing_gateways() == 2)
            await load.share_of("wide")  # the start, in which they did not know of each other
            shared = await load.share_of("wide")
            await server.kill()
            await eventually(lambda: sharing_gateways() == 1)
            await load.share_of("wide")  # what was ahead then
            alone = await load.share_of("wide")
    assert load.failed == []
    assert shared == pytest.approx(0.5, abs=0.08)
    assert alone > 0.62


async def test_a_slot_is_left_for_a_moment_to_a_tenant_that_waits_elsewhere_and_is_taken_if_it_stays_free(
    cluster: Cluster,
) -> None:
    dispatcher = cluster.gateway.service.inference.dispatcher
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}

    async def left_by(requests: int) -> float:
        before = left_slots()
        for _ in range(requests):
            assert (await cluster.http.post(CHAT, json=body)).status_code == 200
        return left_slots() - before

    assert await left_by(4) == 0
    (model, tenant, band, *_), *_ = json.loads(dispatcher.usage.report())
    waiting_elsewhere = json.dumps([[model, f"not {tenant}", band, 0.0, 1]])
    dispatcher.learn_shares({"other": waiting_elsewhere})
    assert await left_by(4) >= 2, "the first ones are no lead yet"
    dispatcher.learn_shares({})
    assert await left_by(4) == 0

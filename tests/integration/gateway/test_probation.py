"""Two gateways with requests at the same runners, one of which kills them: the other one is not refused for it."""

import asyncio
import json
from typing import Any

import httpx

from gateway.app import running_gateway
from gateway.settings import GatewaySettings
from scheduler.client import SchedulerClient
from tests.integration.gateway.conftest import WAIT_S, StartCluster, eventually
from tests.integration.gateway.scripted import ANSWER, MODEL_NAME, ScriptedRunner

QUESTION: Any = [{"role": "user", "content": "What is Puna?"}]
POISON = 666
TEXT = "".join(ANSWER)


class Deadly(ScriptedRunner):
    """Dies with its first piece of an answer to the poisonous request, once both requests are at it."""

    death: "asyncio.Task[None] | None" = None

    @property
    def both_here(self) -> bool:
        """True once both compute, or one does and the other one waits for that."""
        return len(self.requests) == 2 or bool(self.probation._place._waiters)

    async def meet(self, _: ScriptedRunner) -> None:
        await eventually(lambda: self.both_here)
        if any(request.sampling.seed == POISON for request in self.requests):
            if self.death is None:
                self.death = asyncio.create_task(self.stop())
            await asyncio.Event().wait()


def deadly(number: int) -> Deadly:
    runner = Deadly(slots=8)
    runner.after_piece = {1: runner.meet, 2: runner.meet}
    runner.placement.placement_id = f"placement-{number}"
    return runner


async def ask(client: httpx.AsyncClient, seed: int) -> str:
    """Return the text of an answer, or the code of its error."""
    body = {"model": "demo", "messages": QUESTION, "stream": True, "seed": seed}
    text = ""
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                if "error" in event:
                    return str(event["error"]["code"])
                text += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
    return text


async def test_a_request_is_not_refused_for_the_crashes_of_a_request_of_another_gateway(
    start_cluster: StartCluster,
) -> None:
    first, second, third = deadly(1), deadly(2), ScriptedRunner(slots=8)
    third.placement.placement_id = "placement-3"
    values: dict[str, Any] = {"host": "127.0.0.1:0", "grpc_host": "127.0.0.1:0"}
    async with (
        start_cluster(runner=first) as cluster,
        SchedulerClient(cluster.scheduler.address) as scheduler,
        running_gateway(GatewaySettings(**values), scheduler=scheduler, drain_s=0.2) as other,
        httpx.AsyncClient(base_url=f"http://{other.http_address}", timeout=WAIT_S) as client,
    ):
        for runner in (second, third):
            await runner.start()
        pools = [one.service.inference.dispatcher.pool for one in (cluster.gateway, other)]
        try:
            await eventually(lambda: all(len(pool._connections) == 1 for pool in pools))
            poisonous, innocent = asyncio.create_task(ask(cluster.http, POISON)), asyncio.create_task(ask(client, 1))
            await eventually(lambda: first.death is not None)
            for runner in (second, third):  # one after the other, so that both requests go to the same one
                cluster.scheduler.replicas[MODEL_NAME] = [runner]
                await cluster.scheduler.publish()
                if isinstance(runner, Deadly):
                    await eventually(lambda: second.death is not None)
            assert await poisonous == "request_quarantined"
            assert await innocent == TEXT
            assert third.requests == [] or [one.sampling.seed for one in third.requests] == [1]
        finally:
            for runner in (second, third):
                if runner.server is not None and getattr(runner, "death", None) is None:
                    await runner.stop()
            for deadly_one in (first, second):
                if deadly_one.death is not None:
                    await deadly_one.death

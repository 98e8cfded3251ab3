"""Readiness checks, one per kind of service. Each waits until the service is ready; the deadline is the caller's."""

import asyncio
from collections.abc import Callable

import grpc
import httpx
from grpc_health.v1 import health_pb2, health_pb2_grpc
from redis.asyncio import Redis
from redis.exceptions import RedisError

from common.grpc.client import open_channel

_RETRY_INTERVAL_S = 0.1
_ANSWER_WITHIN_S = 2.0


async def redis_answers(url: str) -> None:
    """Wait until PING is answered; while Redis reads its file it answers with an error."""
    async with Redis.from_url(url, socket_timeout=_ANSWER_WITHIN_S) as client:
        while True:
            try:
                await client.ping()
                return
            except (RedisError, OSError):
                await asyncio.sleep(_RETRY_INTERVAL_S)


async def grpc_serves(address: str, peer: str) -> None:
    """Wait until the health service says SERVING. `peer`: as `open_channel`."""
    request = health_pb2.HealthCheckRequest()
    while True:
        async with open_channel(address, peer) as channel:
            try:
                watch = health_pb2_grpc.HealthStub(channel).Watch  # type: ignore[attr-defined]  # the stub lacks it
                async for answer in watch(request, wait_for_ready=True):
                    if answer.status == health_pb2.HealthCheckResponse.SERVING:
                        return
            except grpc.RpcError:
                await asyncio.sleep(_RETRY_INTERVAL_S)


async def gateway_admits(url: str) -> None:
    """Wait until the gateway has a route table and takes requests."""
    await _until(url + "/readyz", lambda response: response.status_code == httpx.codes.OK)


async def model_is_listed(url: str, model: str) -> None:
    """Wait until clients see a model; a gateway that asks for keys is not asked further."""

    def lists_it(response: httpx.Response) -> bool:
        if response.status_code == httpx.codes.UNAUTHORIZED:
            return True
        names = [entry["name"] for entry in response.json().get("models", [])] if response.is_success else []
        return any(name.partition(":")[0] == model for name in names)

    await _until(url + "/api/tags", lists_it)


async def _until(url: str, condition: Callable[[httpx.Response], bool]) -> None:
    # The certificate is that of our own child, and may be made out to any name; nothing secret is sent.
    async with httpx.AsyncClient(trust_env=False, timeout=_ANSWER_WITHIN_S, verify=False) as client:  # noqa: S501
        while True:
            try:
                if condition(await client.get(url)):
                    return
            except (httpx.HTTPError, ValueError):
                pass
            await asyncio.sleep(_RETRY_INTERVAL_S)

"""Is Redis there, and set up to be relied on."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from redis.asyncio import Redis
from redis.exceptions import RedisError

from cli.cluster.plan import embedded_redis_server
from cli.core.doctor.assessments import SentinelAnswer, assess_redis, assess_sentinels, assess_skew
from cli.core.doctor.findings import Finding, fail, ok
from common.network import join_host_port, split_host_port
from common.redis_client import SENTINEL_PORT, SENTINEL_SCHEMES, open_redis
from common.startup_error import StartupError

_ANSWER_WITHIN_S = 2.0
_ALL_WITHIN_S = 10.0


def inspect_redis(url: str | None) -> Iterator[Finding]:
    """Check the Redis of the settings or of the running cluster; None: `puna up` would start its own."""
    if url is None:
        try:
            yield ok("redis", f"`puna up` starts its own, {embedded_redis_server()}")
        except StartupError as error:
            yield fail("redis", str(error), "reinstall Puna, or set PUNA_REDIS_URL to a Redis of your own")
        return
    yield from asyncio.run(_ask(url))


async def _ask(url: str) -> list[Finding]:
    findings: list[Finding] = []
    shown = without_password(url)
    try:
        async with asyncio.timeout(_ALL_WITHIN_S):
            if urlsplit(url).scheme in SENTINEL_SCHEMES:
                answers = await _ask_sentinels(url)
                findings += assess_sentinels(answers, set_name=_set_name(url))
                if all(answer.trouble for answer in answers):
                    return findings  # the address of the server is unknown
            findings += await _ask_server(url)
    except ValueError as error:
        findings.append(fail("redis", f"PUNA_REDIS_URL: {str(error).replace(url, shown)}", "correct it"))
    except (RedisError, OSError, TimeoutError) as error:
        text = str(error).partition(" : <")[0] or type(error).__name__  # what follows is for those who debug the client
        findings.append(fail("redis", f"{shown} does not answer: {text}", "start it, or correct PUNA_REDIS_URL"))
    return findings


async def _ask_server(url: str) -> list[Finding]:
    client = open_redis(url, timeout_s=_ANSWER_WITHIN_S, connections_max=1)
    try:
        asked_s = time.time()
        seconds, microseconds = await client.time()
        skew_s = seconds + microseconds / 1e6 - (asked_s + time.time()) / 2
        info: dict[str, Any] = await client.info()
        try:
            save = (await client.config_get("save")).get("save")
        except RedisError:  # those who run it for others forbid that
            save = None
        return [*assess_redis(info, save=save), assess_skew("Redis' clock", skew_s)]
    finally:
        await client.aclose()


async def _ask_sentinels(url: str) -> list[SentinelAnswer]:
    _, _, hosts = urlsplit(url).netloc.rpartition("@")
    addresses = [split_host_port(host if ":" in host else f"{host}:{SENTINEL_PORT}") for host in hosts.split(",")]
    is_tls = SENTINEL_SCHEMES[urlsplit(url).scheme]
    return [await _ask_sentinel(host, port, _set_name(url), is_tls=is_tls) for host, port in addresses]


async def _ask_sentinel(host: str, port: int, set_name: str, *, is_tls: bool) -> SentinelAnswer:
    client = Redis(
        host=host,
        port=port,
        ssl=is_tls,
        socket_timeout=_ANSWER_WITHIN_S,
        socket_connect_timeout=_ANSWER_WITHIN_S,
        decode_responses=True,
    )
    address = join_host_port(host, port)
    try:
        state: Any = await client.sentinel_master(set_name)
        primary = join_host_port(str(state["ip"]), int(state["port"]))
        return SentinelAnswer(address=address, primary=primary, quorum=int(state["quorum"]))
    except (RedisError, OSError) as error:
        return SentinelAnswer(address=address, trouble=str(error) or type(error).__name__)
    finally:
        await client.aclose()


def _set_name(url: str) -> str:
    return urlsplit(url).path.strip("/").partition("/")[0]


def without_password(url: str) -> str:
    """As it may be shown."""
    parts = urlsplit(url)
    _, at, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"(hidden){at}{host}" if at else host))

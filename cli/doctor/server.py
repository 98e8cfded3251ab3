"""Redis, and the server that commands talk to: are they there, are they ready, what do they say of themselves."""

import asyncio
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import httpx
from redis.asyncio import Redis
from redis.exceptions import RedisError

from cli.cluster.plan import embedded_redis_server
from cli.core.doctor.assessments import (
    SentinelAnswer,
    assess_crashes,
    assess_listed,
    assess_nodes,
    assess_readiness,
    assess_redis,
    assess_sentinels,
    assess_skew,
    assess_version,
)
from cli.core.doctor.findings import Finding, fail, ok, skip
from cli.errors import CommandFailed, ExitCode
from cli.server import Server
from common.effective_settings import without_credentials
from common.network import join_host_port, split_host_port
from common.redis.client import SENTINEL_PORT, SENTINEL_SCHEMES, open_redis
from common.startup_error import StartupError
from common.version import puna_version

_REDIS_ANSWER_WITHIN_S = 2.0
_REDIS_ALL_WITHIN_S = 10.0
_ANSWER_WITHIN_S = 10.0


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
    shown = without_credentials(url)
    try:
        async with asyncio.timeout(_REDIS_ALL_WITHIN_S):
            if urlsplit(url).scheme in SENTINEL_SCHEMES:
                answers = await _ask_sentinels(url)
                findings += assess_sentinels(answers, set_name=_set_name(url))
                if all(answer.trouble for answer in answers):
                    return findings  # the address of the server is unknown
            findings += await _ask_server(url)
    except ValueError as error:
        findings.append(fail("redis", f"PUNA_REDIS_URL: {str(error).replace(url, shown)}", "correct it"))
    except (RedisError, OSError, TimeoutError) as error:
        text = str(error).partition(" : <")[0] or type(error).__name__  # the rest helps to debug the client only
        findings.append(fail("redis", f"{shown} does not answer: {text}", "start it, or correct PUNA_REDIS_URL"))
    return findings


async def _ask_server(url: str) -> list[Finding]:
    client = open_redis(url, timeout_s=_REDIS_ANSWER_WITHIN_S, connections_max=1)
    try:
        asked_s = time.time()
        seconds, microseconds = await client.time()
        skew_s = seconds + microseconds / 1e6 - (asked_s + time.time()) / 2
        info: dict[str, Any] = await client.info()
        try:
            save = (await client.config_get("save")).get("save")
        except RedisError:  # hosted Redis services forbid the command
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
        socket_timeout=_REDIS_ANSWER_WITHIN_S,
        socket_connect_timeout=_REDIS_ANSWER_WITHIN_S,
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


def inspect_server(server: Server, *, expected: bool, named: frozenset[str] = frozenset()) -> Iterator[Finding]:
    """Check the server. `expected`: its absence is a fault. `named`: unusable models that are reported already."""
    asked_s = time.time()
    try:
        response = server.ask("GET", "/api/version", answer_within_s=_ANSWER_WITHIN_S)
    except CommandFailed as error:
        if error.code is ExitCode.NOT_FOUND:
            yield assess_version(url=server.url, answer={}, own_version=puna_version())
        elif error.code is ExitCode.UNREACHABLE and not expected:
            yield skip("server", f"nothing answers at {server.url}; `puna up` starts one")
        else:
            yield fail("server", str(error), "start it, or correct PUNA_HOST")
        return
    middle_s = (asked_s + time.time()) / 2
    answer = _object(response)
    yield assess_version(url=server.url, answer=answer, own_version=puna_version())
    yield from _clock(response, middle_s)
    if "puna" in answer:
        yield from _readiness(server)
        yield from _nodes(server)
        yield from _models(server, named)


def _models(server: Server, named: frozenset[str]) -> Iterator[Finding]:
    try:
        models = server.get("/api/tags", answer_within_s=_ANSWER_WITHIN_S).get("models") or []
    except CommandFailed as error:
        if error.code is not ExitCode.REFUSED:  # the nodes, which need the same, say so already
            yield fail("models", str(error), "look at the gateway's log")
        return
    yield from assess_listed(models, named=named)


def _clock(response: httpx.Response, middle_s: float) -> Iterator[Finding]:
    try:
        # The header has whole seconds: half of one is the best guess of what was cut.
        said_s = parsedate_to_datetime(response.headers["date"]).timestamp() + 0.5
    except (KeyError, ValueError):
        yield skip("clocks", "the server does not say what time it is")
        return
    yield assess_skew("the server's clock", said_s - middle_s)


def _readiness(server: Server) -> Iterator[Finding]:
    try:
        response = server.answer("GET", "/readyz", answer_within_s=_ANSWER_WITHIN_S)
    except CommandFailed as error:
        yield fail("server", str(error), "look at its log")
        return
    yield assess_readiness(response.status_code, _object(response))


def _object(response: httpx.Response) -> dict[str, Any]:
    """Return the JSON object of an answer; an empty one where it is none."""
    try:
        answer = response.json()
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _nodes(server: Server) -> Iterator[Finding]:
    try:
        nodes = server.get("/puna/v1/nodes", answer_within_s=_ANSWER_WITHIN_S).get("nodes") or []
    except CommandFailed as error:
        if error.code is ExitCode.REFUSED:
            yield fail("nodes", str(error), "set PUNA_API_KEY or PUNA_API_KEY_FILE to a key with models:read")
        else:
            yield fail("nodes", str(error), "look at the scheduler's log")
        return
    yield from assess_nodes(nodes)
    yield from assess_crashes(nodes, now_unix_s=time.time())

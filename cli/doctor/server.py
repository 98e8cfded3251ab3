"""The server that commands talk to: is it there, is it ready, what does it say of its nodes."""

import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from cli.core.doctor.assessments import (
    assess_crashes,
    assess_listed,
    assess_nodes,
    assess_readiness,
    assess_skew,
    assess_version,
)
from cli.core.doctor.findings import Finding, fail, skip
from cli.core.exit_codes import ExitCode
from cli.errors import CommandFailed
from cli.server import Server
from common.version import puna_version

_ANSWER_WITHIN_S = 10.0


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
    response = server.try_get("/readyz", answer_within_s=_ANSWER_WITHIN_S)
    if isinstance(response, CommandFailed):
        yield fail("server", str(response), "look at its log")
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

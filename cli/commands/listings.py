"""`puna ps`, `nodes`, `models` and `version`."""

import time
from importlib import metadata
from typing import Any

from cli.core.listing_rows import (
    DEVICE_HEADINGS,
    DEVICE_SPARE,
    LOADED_HEADINGS,
    LOADED_SPARE,
    MODEL_SPARE,
    crashed_rows,
    device_rows,
    loaded_rows,
    model_table,
)
from cli.errors import CommandFailed
from cli.output import print_json, print_table
from cli.server import Server
from common.version import puna_version

_CRASHES_WITHIN_S = 1.0


def ps(*, as_json: bool) -> None:
    """List loaded models, and those that crash instead of being loaded."""
    answer, crashes = Server.of().get("/api/ps"), _crash_rows()
    if as_json:
        print_json({**answer, "crash_rows": crashes})
        return
    now_unix_s = time.time()
    loaded = loaded_rows(answer.get("models") or [], now_unix_s=now_unix_s)
    print_table(LOADED_HEADINGS, [*loaded, *crashed_rows(crashes, now_unix_s=now_unix_s)], spare=LOADED_SPARE)


def nodes(*, as_json: bool) -> None:
    """Machines and devices."""
    answer = Server.of().get("/puna/v1/nodes")
    if as_json:
        print_json(answer)
    else:
        print_table(DEVICE_HEADINGS, device_rows(answer.get("nodes") or [], now_unix_s=time.time()), spare=DEVICE_SPARE)


def models(*, as_json: bool) -> None:
    """List the models that can be used."""
    answer = Server.of().get("/api/tags")
    if as_json:
        print_json(answer)
    else:
        headings, rows = model_table(answer.get("models") or [], now_unix_s=time.time())
        print_table(headings, rows, spare=MODEL_SPARE)


def version(*, as_json: bool) -> None:
    """Of this command, its engine, and of the server and its nodes if one answers."""
    server = Server.of()
    answer: dict[str, Any] = {}
    builds: dict[str, str] = {}
    trouble: CommandFailed | None = None
    try:
        answer = server.get("/api/version")
        builds = {str(node["id"]): str(node.get("build") or "") for node in server.get("/puna/v1/nodes")["nodes"]}
    except CommandFailed as error:
        trouble = error
    engine = _engine_version()
    if as_json:
        fields = {"client": puna_version(), "server": answer.get("puna"), "url": server.url, "engine": engine}
        print_json({**fields, "ollama": answer.get("version"), "nodes": builds})
        return
    print(f"puna {puna_version()}, engine {f'llama-cpp-python {engine}' if engine else 'not installed'}")
    print(f"server {answer.get('puna', 'of another kind')} at {server.url}" if answer else f"no server: {trouble}")
    if answer and trouble is not None:
        print(f"nodes not shown: {trouble}")
    for node, build in builds.items():
        print(f"node {node}, engine {build}")


def _crash_rows() -> list[dict[str, Any]]:
    """Of all nodes; none where the server has no such page, or no scheduler answers soon: what is loaded is known."""
    server = Server.of()
    try:
        nodes = server.get("/puna/v1/nodes", answer_within_s=_CRASHES_WITHIN_S).get("nodes") or []
    except CommandFailed:
        return []
    return [row for node in nodes for row in node.get("crash_rows") or []]


def _engine_version() -> str | None:
    """Of the binding to llama.cpp that is installed beside this command; None: none is."""
    try:
        return metadata.version("llama-cpp-python")
    except metadata.PackageNotFoundError:
        return None

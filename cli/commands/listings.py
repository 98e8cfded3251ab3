"""`puna ps`, `nodes`, `models` and `version`."""

import time
from importlib import metadata
from typing import Any

from cli.core.listing_rows import (
    DEVICE_HEADINGS,
    DEVICE_SPARE,
    LOADED_HEADINGS,
    LOADED_SPARE,
    MODEL_HEADINGS,
    MODEL_SPARE,
    device_rows,
    loaded_rows,
    model_rows,
)
from cli.errors import CommandFailed
from cli.output import print_json, print_table
from cli.server import Server
from cli.settings import CliSettings
from common.version import puna_version


def ps(*, as_json: bool) -> None:
    """What is loaded."""
    answer = _get("/api/ps")
    if as_json:
        print_json(answer)
    else:
        print_table(
            LOADED_HEADINGS, loaded_rows(answer.get("models") or [], now_unix_s=time.time()), spare=LOADED_SPARE
        )


def nodes(*, as_json: bool) -> None:
    """Machines and devices."""
    answer = _get("/puna/v1/nodes")
    if as_json:
        print_json(answer)
    else:
        print_table(DEVICE_HEADINGS, device_rows(answer.get("nodes") or []), spare=DEVICE_SPARE)


def models(*, as_json: bool) -> None:
    """What can be used."""
    answer = _get("/api/tags")
    if as_json:
        print_json(answer)
    else:
        print_table(MODEL_HEADINGS, model_rows(answer.get("models") or [], now_unix_s=time.time()), spare=MODEL_SPARE)


def version(*, as_json: bool) -> None:
    """Of this command, its engine, and of the server and its nodes if one answers."""
    server = Server.of(CliSettings.load())
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


def _engine_version() -> str | None:
    """Of the binding to llama.cpp that is installed beside this command; None: none is."""
    try:
        return metadata.version("llama-cpp-python")
    except metadata.PackageNotFoundError:
        return None


def _get(path: str) -> dict[str, Any]:
    return Server.of(CliSettings.load()).get(path)

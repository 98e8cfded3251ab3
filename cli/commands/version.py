"""`puna version`."""

from importlib import metadata
from typing import Any

from cli.errors import CommandFailed
from cli.output import print_json
from cli.server import Server
from common.version import puna_version


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


def _engine_version() -> str | None:
    """Of the binding to llama.cpp that is installed beside this command; None: none is."""
    try:
        return metadata.version("llama-cpp-python")
    except metadata.PackageNotFoundError:
        return None

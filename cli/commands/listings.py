"""`puna ps`, `nodes`, `models` and `version`."""

import time
from typing import Any

from cli.core.listing_rows import (
    DEVICE_HEADINGS,
    LOADED_HEADINGS,
    MODEL_HEADINGS,
    device_rows,
    loaded_rows,
    model_rows,
)
from cli.errors import CommandFailed
from cli.output import print_json, print_table
from cli.server import Server
from cli.settings import CliSettings
from cli.version import puna_version


def ps(*, as_json: bool) -> None:
    """What is loaded."""
    answer = _get("/api/ps")
    if as_json:
        print_json(answer)
    else:
        print_table(LOADED_HEADINGS, loaded_rows(answer.get("models") or [], now_unix_s=time.time()))


def nodes(*, as_json: bool) -> None:
    """Machines and devices."""
    answer = _get("/puna/v1/nodes")
    if as_json:
        print_json(answer)
    else:
        print_table(DEVICE_HEADINGS, device_rows(answer.get("nodes") or []))


def models(*, as_json: bool) -> None:
    """What can be used."""
    answer = _get("/api/tags")
    if as_json:
        print_json(answer)
    else:
        print_table(MODEL_HEADINGS, model_rows(answer.get("models") or [], now_unix_s=time.time()))


def version(*, as_json: bool) -> None:
    """Of this command, and of the server if one answers."""
    server = Server.of(CliSettings.load())
    try:
        answer = server.get("/api/version")
    except CommandFailed as error:
        answer, trouble = {}, str(error)
    if as_json:
        print_json({"client": puna_version(), "server": answer.get("puna"), "url": server.url})
        return
    print(f"puna {puna_version()}")
    print(f"server {answer.get('puna', 'of another kind')} at {server.url}" if answer else f"no server: {trouble}")


def _get(path: str) -> dict[str, Any]:
    return Server.of(CliSettings.load()).get(path)

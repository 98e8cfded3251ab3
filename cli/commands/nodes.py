"""`puna drain` and `puna undrain`."""

import time
from typing import Any
from urllib.parse import quote

from cli.errors import CommandFailed
from cli.server import Server
from cli.settings import CliSettings

_LOOK_S = 1.0


def drain(node: str, *, wait: bool, budget_s: int | None) -> None:
    """Take a node out of use; with `wait`, stay until nothing runs there."""
    server = Server.of(CliSettings.load())
    query = "" if budget_s is None else f"?budget_s={budget_s}"
    answer = server.send("POST", f"/puna/v1/nodes/{quote(node, safe='')}/drain{query}", {})
    told = _text(answer)
    print(told, flush=True)
    while wait and answer.get("state") == "draining":
        time.sleep(_LOOK_S)
        nodes = server.get("/puna/v1/nodes").get("nodes") or []
        found = next((one for one in nodes if one.get("id") == node), None)
        if found is None:
            print(f"{node} is gone")
            return
        if found.get("state") not in ("draining", "drained", "suspect"):
            raise CommandFailed(f"{node} is not drained any more")
        answer = found
        if _text(answer) != told:
            told = _text(answer)
            print(told, flush=True)


def undrain(node: str) -> None:
    """Put a node into use again."""
    Server.of(CliSettings.load()).send("POST", f"/puna/v1/nodes/{quote(node, safe='')}/undrain", {})
    print(f"{node} is in use again")


def _text(answer: dict[str, Any]) -> str:
    name, left = answer.get("node") or answer.get("id"), answer.get("draining_replicas") or 0
    if answer.get("state") == "drained":
        return f"{name} is drained"
    return f"{name} is draining, {left} replica{'' if left == 1 else 's'} left"

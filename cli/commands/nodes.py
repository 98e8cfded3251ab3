"""`puna drain` and `puna undrain`."""

import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from cli.errors import CommandFailed
from cli.output import print_answer, print_json
from cli.server import Server

_LOOK_S = 1.0


def drain(node: str, *, wait: bool, budget_s: int | None, as_json: bool) -> None:
    """Take a node out of use; with `wait`, stay until nothing runs there."""
    answer = _drain(node, wait=wait, budget_s=budget_s, say=(lambda _: None) if as_json else _say)
    if as_json:
        print_json(answer)


def _drain(node: str, *, wait: bool, budget_s: int | None, say: Callable[[str], None]) -> dict[str, Any]:
    server = Server.of()
    query = "" if budget_s is None else f"?budget_s={budget_s}"
    answer = server.send("POST", f"/puna/v1/nodes/{quote(node, safe='')}/drain{query}", {})
    reported = _text(answer)
    say(reported)
    while wait and answer.get("state") == "draining":
        time.sleep(_LOOK_S)
        nodes = server.get("/puna/v1/nodes").get("nodes") or []
        found = next((one for one in nodes if one.get("id") == node), None)
        if found is None:
            say(f"{node} is gone")
            return {"node": node, "state": "gone", "draining_replicas": 0}
        if found.get("state") not in ("draining", "drained", "suspect"):
            raise CommandFailed(f"{node} is not drained any more")
        answer = {"node": node, "state": found.get("state"), "draining_replicas": found.get("draining_replicas") or 0}
        if _text(answer) != reported:
            reported = _text(answer)
            say(reported)
    return answer


def undrain(node: str, *, as_json: bool) -> None:
    """Put a node into use again."""
    answer = Server.of().send("POST", f"/puna/v1/nodes/{quote(node, safe='')}/undrain", {})
    print_answer(answer, f"{node} is in use again", as_json=as_json)


def _say(text: str) -> None:
    print(text, flush=True)


def _text(answer: dict[str, Any]) -> str:
    name, left = answer.get("node") or answer.get("id"), answer.get("draining_replicas") or 0
    if answer.get("state") == "drained":
        return f"{name} is drained"
    return f"{name} is draining, {left} replica{'' if left == 1 else 's'} left"

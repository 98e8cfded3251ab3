"""`puna forget`."""

from typing import Annotated

import typer

from cli.arguments.common import Json, server
from cli.errors import CommandFailed, ExitCode
from cli.output import print_answer

app = typer.Typer()


@app.command()
def forget(
    tenant: Annotated[
        str, typer.Option(metavar="NAME", help="Whose; without it, what was saved for callers without a key.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Drop the saved conversations of a tenant on every node, and what idle slots hold of it.

    Needs the right admin:cluster. Answers in progress go on, and nothing of them is saved.
    """
    answer = server().send("POST", "/puna/v1/states/forget", {"tenant": tenant})
    nodes = answer.get("nodes") or []
    states, size = (sum(int(node[name]) for node in nodes) for name in ("states", "bytes"))
    print_answer(answer, f"dropped {states} saved states ({size} bytes) on {len(nodes)} nodes", as_json=as_json)
    failed = [f"{node['node']}: {node['error']}" for node in nodes if node["error"]]
    if failed:
        raise CommandFailed("not everything was dropped: " + "; ".join(failed), ExitCode.FAILED)

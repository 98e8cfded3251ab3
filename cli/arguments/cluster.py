"""`puna up`, `down`, `nodes`, `drain`, `undrain` and `version`."""

from typing import Annotated

import typer

from cli.arguments.common import Home, Json, Node

app = typer.Typer()

Port = typer.Option(min=0, max=65535, metavar="PORT", show_default=False)


@app.command()
def up(
    port: Annotated[int | None, Port] = None,
    grpc_port: Annotated[int | None, Port] = None,
    home: Home = None,
    address: Annotated[
        str, typer.Option(metavar="ADDRESS", help="This machine's, for machines that join, without TLS.")
    ] = "",
    join: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Be a node of the cluster of another machine: its --address.")
    ] = "",
) -> None:
    """Serve on this machine until Ctrl-C. Redis, discovery, scheduler, host and gateway; with --join a host alone.

    Listens on 127.0.0.1:11434 (HTTP) and 127.0.0.1:11435 (gRPC) unless PUNA_HOST, PUNA_GRPC_HOST, --port or
    --grpc-port say otherwise; port 0 takes any free one.
    """
    from cli.commands import cluster

    cluster.up(port=port, grpc_port=grpc_port, home=home, address=address, join=join)


@app.command()
def down(home: Home = None) -> None:
    """Stop what `puna up` runs in a home."""
    from cli.commands import cluster

    cluster.down(home=home)


@app.command()
def nodes(as_json: Json = False) -> None:
    """List machines, their devices and what is free there."""
    from cli.commands import listings

    listings.nodes(as_json=as_json)


@app.command()
def drain(
    node: Node,
    wait: Annotated[bool, typer.Option("--wait", help="Return when nothing runs there any more.")] = False,
    budget: Annotated[
        int | None, typer.Option(metavar="SECONDS", help="For running requests; 300 if not given.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Take a node out of use. Nothing new is placed there, and what runs there moves elsewhere or ends."""
    from cli.commands import nodes as commands

    commands.drain(node, wait=wait, budget_s=budget, as_json=as_json)


@app.command()
def undrain(node: Node, as_json: Json = False) -> None:
    """Put a drained node into use again."""
    from cli.commands import nodes as commands

    commands.undrain(node, as_json=as_json)


@app.command()
def version(as_json: Json = False) -> None:
    """Print the versions of command, server and engines."""
    from cli.commands import listings

    listings.version(as_json=as_json)

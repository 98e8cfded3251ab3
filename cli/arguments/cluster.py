"""`puna up`, `down`, `nodes`, `nodes remove`, `drain`, `undrain` and `version`."""

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Annotated, Any
from urllib.parse import quote

import typer

from cli.arguments.common import Home, Json, Node, server
from cli.core.listing_rows import DEVICE_HEADINGS, DEVICE_SPARE, device_rows
from cli.core.server_address import DEFAULT_GRPC_PORT, DEFAULT_PORT, listen_address
from cli.errors import CommandFailed, ExitCode
from cli.output import print_answer, print_json, print_listing
from common.network import split_host_port

app = typer.Typer()

_LOOK_S = 1.0
_NODES = "/puna/v1/nodes"
Port = typer.Option(min=0, max=65535, metavar="PORT", show_default=False)


@app.command()
def up(
    port: Annotated[int | None, Port] = None,
    grpc_port: Annotated[int | None, Port] = None,
    home: Home = None,
    address: Annotated[str, typer.Option(metavar="ADDRESS", help="This machine's, for machines that join.")] = "",
    join: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Be a node of the cluster of another machine: its --address.")
    ] = "",
    token: Annotated[
        str, typer.Option(metavar="TOKEN", help="With --join: as the other machine prints it; needed once.")
    ] = "",
) -> None:
    """Serve on this machine until Ctrl-C. Redis, discovery, scheduler, host and gateway; with --join a host alone.

    Listens on 127.0.0.1:11434 (HTTP) and 127.0.0.1:11435 (gRPC) unless PUNA_HOST, PUNA_GRPC_HOST, --port or
    --grpc-port say otherwise; port 0 takes any free one.
    """
    from cli.cluster.joining import discovery_of, own_address_towards
    from cli.cluster.plan import FreePort, UpRequest
    from cli.cluster.up import bring_up
    from cli.cluster.zygote import fork_zygote
    from cli.settings import CliSettings
    from common.telemetry.logs import LineWriter

    settings = CliSettings.load()
    try:
        http = listen_address(settings.host, port=port, default_port=DEFAULT_PORT)
        grpc = listen_address(settings.grpc_host, port=grpc_port, default_port=DEFAULT_GRPC_PORT)
    except ValueError as error:
        raise CommandFailed(str(error)) from error
    if split_host_port(http)[1] == 0:
        http = FreePort().address()
    if split_host_port(grpc)[1] == 0:
        grpc = FreePort().address()
    if token and not join:
        raise CommandFailed("--token goes with --join ADDRESS", ExitCode.USAGE)
    joined = discovery_of(join) if join else ""
    request = UpRequest(
        home=home or settings.home,
        http=http,
        grpc=grpc,
        models=settings.models.expanduser().resolve() if settings.models else None,
        redis_url=settings.redis_url,
        tls=settings.tls_cert is not None,
        opened=address or (own_address_towards(joined) if joined else ""),
        joined=joined,
        trust=settings.trust.expanduser().resolve() if settings.trust else None,
        token=token,
        plaintext=settings.plaintext,
        node_id=os.environ.get("PUNA_NODE_ID", ""),
    )
    zygote = fork_zygote() if settings.zygote else None
    # A terminal or pipe that takes no output must not stop the supervision of the services.
    said, warned = LineWriter(sys.stdout.fileno()), LineWriter(sys.stderr.fileno())
    try:
        bring_up(
            request,
            say=lambda text: said.write(f"{text}\n"),
            warn=lambda text: warned.write(f"puna: {text}\n"),
            zygote=zygote,
        )
    finally:
        said.drain()
        warned.drain()


@app.command()
def down(home: Home = None) -> None:
    """Stop what `puna up` runs in a home."""
    from cli.cluster.up import take_down
    from cli.settings import CliSettings

    take_down(home or CliSettings.load().home, say=_say)


def _say(text: str) -> None:
    with suppress(OSError):  # a closed terminal takes no output; the cluster must stop in order all the same
        print(text, flush=True)


nodes_app = typer.Typer(name="nodes", invoke_without_command=True)
app.add_typer(nodes_app)


@nodes_app.callback()
def nodes(context: typer.Context, as_json: Json = False) -> None:
    """List machines, their devices and what is free there; or remove one."""
    if context.invoked_subcommand is not None:
        return
    answer = server().get(_NODES)
    rows = device_rows(answer.get("nodes") or [], now_unix_s=time.time())
    print_listing(answer, DEVICE_HEADINGS, rows, as_json=as_json, spare=DEVICE_SPARE)


@nodes_app.command("remove")
def remove_node(
    node: Node,
    absent: Annotated[bool, typer.Option("--absent", help="Also if it is not there now.")] = False,
    as_json: Json = False,
) -> None:
    """Refuse the certificates that a node has now. What runs there is lost; `puna drain` it first if it is in order.

    It can come back with a new certificate.
    """
    query = "?absent=true" if absent else ""
    answer = server().send("POST", f"{_NODES}/{quote(node, safe='')}/remove{query}", {})
    count = answer.get("lost_replicas") or 0
    lost = f", with {count} replica{'' if count == 1 else 's'}" if count else ""
    print_answer(answer, f"{node} is removed{lost}; its certificates are refused", as_json=as_json)


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
    answer = _drain(node, wait=wait, budget_s=budget, say=(lambda _: None) if as_json else partial(print, flush=True))
    if as_json:
        print_json(answer)


def _drain(node: str, *, wait: bool, budget_s: int | None, say: Callable[[str], None]) -> dict[str, Any]:
    gateway = server()
    query = "" if budget_s is None else f"?budget_s={budget_s}"
    answer = gateway.send("POST", f"{_NODES}/{quote(node, safe='')}/drain{query}", {})
    reported = _progress(answer)
    say(reported)
    while wait and answer.get("state") == "draining":
        time.sleep(_LOOK_S)
        nodes = gateway.get(_NODES).get("nodes") or []
        found = next((one for one in nodes if one.get("id") == node), None)
        if found is None:
            say(f"{node} is gone")
            return {"node": node, "state": "gone", "draining_replicas": 0}
        if found.get("state") not in ("draining", "drained", "suspect"):
            raise CommandFailed(f"{node} is not drained any more")
        answer = {"node": node, "state": found.get("state"), "draining_replicas": found.get("draining_replicas") or 0}
        if _progress(answer) != reported:
            reported = _progress(answer)
            say(reported)
    return answer


def _progress(answer: dict[str, Any]) -> str:
    name, left = answer.get("node") or answer.get("id"), answer.get("draining_replicas") or 0
    if answer.get("state") == "drained":
        return f"{name} is drained"
    return f"{name} is draining, {left} replica{'' if left == 1 else 's'} left"


@app.command()
def undrain(node: Node, as_json: Json = False) -> None:
    """Put a drained node into use again."""
    answer = server().send("POST", f"{_NODES}/{quote(node, safe='')}/undrain", {})
    print_answer(answer, f"{node} is in use again", as_json=as_json)


@app.command()
def version(as_json: Json = False) -> None:
    """Print the versions of command, server and engines."""
    from importlib import metadata

    from common.version import puna_version

    gateway, own = server(), puna_version()
    answer: dict[str, Any] = {}
    builds: dict[str, str] = {}
    trouble: CommandFailed | None = None
    try:
        answer = gateway.get("/api/version")
        builds = {str(node["id"]): str(node.get("build") or "") for node in gateway.get("/puna/v1/nodes")["nodes"]}
    except CommandFailed as error:
        trouble = error
    engine: str | None = None
    with suppress(metadata.PackageNotFoundError):
        engine = metadata.version("llama-cpp-python")  # the binding that is installed beside this command
    if as_json:
        fields = {"client": own, "server": answer.get("puna"), "url": gateway.url, "engine": engine}
        print_json({**fields, "ollama": answer.get("version"), "nodes": builds})
        return
    print(f"puna {own}, engine {f'llama-cpp-python {engine}' if engine else 'not installed'}")
    print(f"server {answer.get('puna', 'of another kind')} at {gateway.url}" if answer else f"no server: {trouble}")
    if answer and trouble is not None:
        print(f"nodes not shown: {trouble}")
    for node, build in builds.items():
        print(f"node {node}, engine {build}")

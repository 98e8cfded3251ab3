"""`puna trust`."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments.common import Json
from cli.errors import CommandFailed
from cli.output import print_listing
from common.startup_error import StartupError

if TYPE_CHECKING:
    from common.trust.authority import Authority

app = typer.Typer(
    name="trust", help="Certificates of the processes of a cluster, for PUNA_TRUST.", no_args_is_help=True
)

_LOOK_S = 60.0
_HEADINGS = ("ROLE", "EXPIRES", "DIRECTORY")
_SHOWN_HEADINGS = ("ROLE", "EXPIRES", "RENEWED", "AUTHORITY", "DIRECTORY")
Directory = Annotated[
    Path | None,
    typer.Option("--dir", metavar="DIRECTORY", help="The authority's files. [default: $PUNA_HOME/trust]"),
]


@app.command("init")
def init(directory: Directory = None) -> None:
    """Make the authority of a new cluster. Who has its files can be any process of it: keep them on one machine."""
    authority = authority_in(directory)
    authority.create()
    print(f"made an authority in {authority.directory}; `puna trust issue ROLE` is next")


@app.command("issue")
def issue(
    role: Annotated[
        list[str], typer.Argument(help="gateway, scheduler, discovery, node/ID, operator; several at once.")
    ],
    life: Annotated[str, typer.Option(metavar="TIME", help="How long the certificates are good.")] = "24h",
    directory: Directory = None,
) -> None:
    """Write a certificate for each role into a directory of its own, for the PUNA_TRUST of that process."""
    from common.durations import parse_go_duration_ms
    from common.trust.roles import parse_role

    try:
        names, life_ms = [parse_role(one) for one in role], parse_go_duration_ms(life)
    except ValueError as error:
        raise CommandFailed(str(error)) from error
    if life_ms < 1000:
        raise CommandFailed("--life must be a second at least")
    authority = authority_in(directory)
    for name in names:
        print(authority.issue(name, life_s=life_ms / 1000))


@app.command("renew")
def renew(
    watch: Annotated[bool, typer.Option("--watch", help="Stay, and renew whenever one is due.")] = False,
    directory: Directory = None,
) -> None:
    """Renew the certificates that are past half of their life. Processes take new ones without a restart."""
    authority = authority_in(directory)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        try:
            for name in authority.renew():
                print(f"renewed {name}", flush=True)
        except StartupError as error:
            if not watch:
                raise
            print(f"not renewed: {error}", file=sys.stderr, flush=True)
        if not watch:
            return
        time.sleep(_LOOK_S)


@app.command("join")
def join(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="Of the machine with the authority.")],
    token: Annotated[
        str, typer.Option(metavar="TOKEN", help="Of `puna tokens create` there; empty: this machine has joined.")
    ] = "",
    watch: Annotated[bool, typer.Option("--watch", help="Stay, and renew the certificate.")] = False,
    directory: Directory = None,
) -> None:
    """Get the certificate of node PUNA_NODE_ID for a token, for a host that `puna up` does not run."""
    import asyncio

    from cli.cluster.joining import discovery_of
    from cli.commands.trust import join as join_cluster
    from cli.settings import CliSettings, acts_in

    home = CliSettings.load().home.expanduser()
    trust, acts = directory or home / "trust", acts_in(directory or home)
    node_id = os.environ.get("PUNA_NODE_ID", "")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    asyncio.run(join_cluster(discovery_of(address), token, trust, node_id=node_id, acts=acts, watch=watch))


@app.command("rotate")
def rotate(directory: Directory = None) -> None:
    """Replace the authority. Certificates of the one before are accepted until the next rotation."""
    authority_in(directory).rotate()
    print("made another authority; certificates of the one before are good until they are renewed")


@app.command("redis")
def redis(directory: Directory = None) -> None:
    """Write users of Redis for the gateway and the scheduler: rules as redis/users.acl, a password beside each role."""
    from common.audit.acts import Act
    from common.redis.users import USERS, write_users

    authority = authority_in(directory)
    with authority.acts.act(Act.TRUST_REDIS, object=USERS):
        print(write_users(authority.directory))


@app.command("list")
def list_issued(directory: Directory = None, as_json: Json = False) -> None:
    """List the certificates that were issued; those of machines that joined have no directory here."""
    from common.trust.admission import Admission
    from common.trust.certificates import when

    authority = authority_in(directory)
    issued = [(facts, str(authority.directory / str(facts.name))) for facts in authority.issued()]
    joined = [(facts, "") for facts in Admission(authority).joined()]
    found = [
        {"role": str(facts.name), "expires": when(facts.valid_to_unix_s), "directory": place}
        for facts, place in (*issued, *joined)
    ]
    print_listing({"certificates": found}, _HEADINGS, [list(one.values()) for one in found], as_json=as_json)


@app.command("show")
def show(directory: Directory = None, as_json: Json = False) -> None:
    """Show the certificates of this machine, their authority, and until when they are good."""
    from cli.commands.trust import identities
    from cli.settings import CliSettings

    settings = CliSettings.load()
    found = identities(directory or settings.trust or settings.home.expanduser() / "trust")
    rows = [list(one.values()) for one in found]
    print_listing({"certificates": found}, _SHOWN_HEADINGS, rows, as_json=as_json, spare=("DIRECTORY",))


@app.command("export")
def export(
    role: Annotated[list[str] | None, typer.Argument(help="Only these; all that were issued if none is given.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="DIRECTORY", help="One file each, instead of standard output.")
    ] = None,
    directory: Directory = None,
) -> None:
    """Print certificates and keys as Secrets of Kubernetes, puna-trust-ROLE. They are not encrypted."""
    from cli.commands.trust import export_secrets

    export_secrets(authority_in(directory), role or [], output)


def authority_in(directory: Path | None) -> "Authority":
    """Return the authority of a directory, or of the home."""
    from cli.settings import CliSettings, acts_in
    from common.trust.authority import Authority

    home = CliSettings.load().home.expanduser()
    return Authority(directory or home / "trust", acts=acts_in(directory or home))

"""`puna trust`."""

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments.common import Json
from cli.errors import CommandFailed
from cli.output import print_listing

if TYPE_CHECKING:
    from common.trust.authority import Authority

app = typer.Typer(
    name="trust", help="Certificates of the processes of a cluster, for PUNA_TRUST.", no_args_is_help=True
)

_LOOK_S = 60.0
_HEADINGS = ("ROLE", "EXPIRES", "DIRECTORY")
Directory = Annotated[
    Path | None,
    typer.Option("--dir", metavar="DIRECTORY", help="The authority's files. [default: $PUNA_HOME/trust]"),
]


@app.command("init")
def init(directory: Directory = None) -> None:
    """Make the authority of a new cluster. Who has its files can be any process of it: keep them on one machine."""
    authority = _authority(directory)
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
    authority = _authority(directory)
    for name in names:
        print(authority.issue(name, life_s=life_ms / 1000))


@app.command("renew")
def renew(
    watch: Annotated[bool, typer.Option("--watch", help="Stay, and renew whenever one is due.")] = False,
    directory: Directory = None,
) -> None:
    """Renew the certificates that are past half of their life. Processes take new ones without a restart."""
    authority = _authority(directory)
    while True:
        for name in authority.renew():
            print(f"renewed {name}", flush=True)
        if not watch:
            return
        time.sleep(_LOOK_S)


@app.command("rotate")
def rotate(directory: Directory = None) -> None:
    """Replace the authority. Certificates of the one before are accepted until the next rotation."""
    _authority(directory).rotate()
    print("made another authority; certificates of the one before are good until they are renewed")


@app.command("redis")
def redis(directory: Directory = None) -> None:
    """Write users of Redis for the gateway and the scheduler: rules as redis/users.acl, a password beside each role."""
    from common.redis_users import write_users

    print(write_users(_authority(directory).directory))


@app.command("list")
def list_issued(directory: Directory = None, as_json: Json = False) -> None:
    """List the certificates that were issued."""
    authority = _authority(directory)
    found = [
        {
            "role": str(facts.name),
            "expires": f"{datetime.fromtimestamp(facts.valid_to_unix_s, UTC):%Y-%m-%d %H:%MZ}",
            "directory": str(authority.directory / str(facts.name)),
        }
        for facts in authority.issued()
    ]
    print_listing({"certificates": found}, _HEADINGS, [list(one.values()) for one in found], as_json=as_json)


def _authority(directory: Path | None) -> "Authority":
    from cli.settings import CliSettings
    from common.trust.authority import Authority

    return Authority(directory or CliSettings.load().home.expanduser() / "trust")

"""`puna tokens`."""

from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments.common import Json
from cli.arguments.trust import Directory, authority_in
from cli.errors import CommandFailed, ExitCode
from cli.output import print_answer, print_listing

if TYPE_CHECKING:
    from common.trust.tokens import JoinTokens

app = typer.Typer(
    name="tokens", help="JoinTokens by which machines join: on the machine with the authority.", no_args_is_help=True
)

_HEADINGS = ("ID", "EXPIRES", "NODE")
_LIFE_MS_MAX = 7 * 24 * 3600 * 1000


@app.command("create")
def create(
    life: Annotated[str, typer.Option(metavar="TIME", help="How long it is good.")] = "1h",
    node: Annotated[str, typer.Option(metavar="ID", help="Good for this node alone.")] = "",
    directory: Directory = None,
    as_json: Json = False,
) -> None:
    """Make a token for one machine, and show it this once: `puna up --join ADDRESS --token TOKEN` there."""
    from common.durations import parse_go_duration_ms
    from common.trust.roles import parse_role

    try:
        life_ms = parse_go_duration_ms(life)
        if node:
            parse_role(f"node/{node}")
    except ValueError as error:
        raise CommandFailed(str(error), ExitCode.USAGE) from error
    if not 1000 <= life_ms <= _LIFE_MS_MAX:
        raise CommandFailed("--life must be from 1s to 168h", ExitCode.USAGE)
    token = _tokens(directory).create(life_s=life_ms / 1000, node=node)
    print_answer({"id": token.id, "token": str(token)}, str(token), as_json=as_json)


@app.command("list")
def list_tokens(directory: Directory = None, as_json: Json = False) -> None:
    """List the tokens that are still good. Their secrets are not kept."""
    from common.trust.certificates import when

    usable = _tokens(directory).usable()
    found = [{"id": one.id, "expires": when(one.expires_unix_s), "node": one.node} for one in usable]
    print_listing({"tokens": found}, _HEADINGS, [list(one.values()) for one in found], as_json=as_json)


@app.command("revoke")
def revoke(
    token: Annotated[str, typer.Argument(metavar="ID", help="As `puna tokens list` shows it.")],
    directory: Directory = None,
) -> None:
    """Make a token useless."""
    if not _tokens(directory).revoke(token):
        raise CommandFailed(f"there is no token {token}; `puna tokens list` shows them", ExitCode.NOT_FOUND)
    print(f"revoked token {token}")


def _tokens(directory: Directory) -> "JoinTokens":
    from common.trust.tokens import JoinTokens

    return JoinTokens(authority_in(directory))

"""`puna keys`."""

from pathlib import Path
from typing import Annotated

import typer

from cli.arguments.common import Json
from cli.completion import complete_key

app = typer.Typer(
    name="keys",
    help="Who may use a gateway. The keys in PUNA_API_KEYS_FILE, or those it keeps itself (--api).",
    no_args_is_help=True,
)

KeysFile = Annotated[
    Path | None,
    typer.Option(
        "--file", metavar="FILE", help="The file of keys. [default: $PUNA_API_KEYS_FILE or $PUNA_HOME/keys.json]"
    ),
]
ViaApi = Annotated[bool, typer.Option("--api", help="Ask the gateway (PUNA_HOST, PUNA_API_KEY) instead of the file.")]
KeyId = Annotated[str, typer.Argument(help="Id of a key; see `puna keys list`.", autocompletion=complete_key)]


@app.command("create")
def create_key(  # noqa: PLR0913, PLR0917  # every argument is an option of the command line
    owner: Annotated[
        str, typer.Option(metavar="NAME", help="Whose key it is; one owner has at most two that are good.")
    ],
    scope: Annotated[
        list[str] | None,
        typer.Option(metavar="SCOPE", help="What it is good for, several times. [default: infer, embed, models:read]"),
    ] = None,
    tenant: Annotated[
        str | None, typer.Option(metavar="NAME", help="With whom it shares in slots. [default: the owner]")
    ] = None,
    model: Annotated[list[str] | None, typer.Option(metavar="MODEL", help="Only this model, several times.")] = None,
    network: Annotated[
        list[str] | None, typer.Option(metavar="NETWORK", help="Only from there, several times: 10.0.0.0/8.")
    ] = None,
    band: Annotated[str, typer.Option(metavar="BAND", help="high, normal or low: who is served first.")] = "normal",
    weight: Annotated[
        int, typer.Option(min=1, max=1000, metavar="NUMBER", help="Share in slots beside other tenants.")
    ] = 1,
    rpm: Annotated[int | None, typer.Option(min=1, metavar="NUMBER", help="Most requests a minute.")] = None,
    tpm: Annotated[int | None, typer.Option(min=1, metavar="NUMBER", help="Most tokens a minute.")] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, metavar="NUMBER", help="Most requests at once.")] = None,
    tpd: Annotated[int | None, typer.Option(min=1, metavar="NUMBER", help="Most tokens a day.")] = None,
    context: Annotated[int | None, typer.Option(min=4, metavar="TOKENS", help="Longest context of a request.")] = None,
    expires: Annotated[str | None, typer.Option(metavar="TIME", help='How long it is good: "720h".')] = None,
    file: KeysFile = None,
    via_api: ViaApi = False,
    as_json: Json = False,
) -> None:
    """Make a key, and show it this once."""
    from cli.commands import keys as commands

    options = {
        "owner": owner,
        "tenant": tenant or owner,
        "scopes": scope or ["infer", "embed", "models:read"],
        "models": model,
        "networks": network,
        "band": band,
        "weight": weight,
        "requests_per_minute": rpm,
        "tokens_per_minute": tpm,
        "concurrency": concurrency,
        "tokens_per_day": tpd,
        "context_tokens": context,
        "expires": expires,
    }
    wanted = {name: value for name, value in options.items() if value is not None}
    commands.create(wanted, file, via_api=via_api, as_json=as_json)


@app.command("list")
def list_keys(file: KeysFile = None, via_api: ViaApi = False, as_json: Json = False) -> None:
    """List every key, revoked ones too."""
    from cli.commands import keys as commands

    commands.show_all(file, via_api=via_api, as_json=as_json)


@app.command("show")
def show_key(key: KeyId, file: KeysFile = None, via_api: ViaApi = False, as_json: Json = False) -> None:
    """Show what a key may do; its secret is not kept."""
    from cli.commands import keys as commands

    commands.show(key, file, via_api=via_api, as_json=as_json)


@app.command("revoke")
def revoke_key(key: KeyId, file: KeysFile = None, via_api: ViaApi = False, as_json: Json = False) -> None:
    """Make a key useless. Within five seconds on every gateway that knows it; it stays as a tombstone."""
    from cli.commands import keys as commands

    commands.revoke(key, file, via_api=via_api, as_json=as_json)

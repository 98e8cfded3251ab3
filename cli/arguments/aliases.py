"""`puna alias`."""

from typing import Annotated
from urllib.parse import quote

import typer

from cli.arguments.common import Json, Model, server
from cli.completion import complete_alias
from cli.core.listing_rows import ALIAS_HEADINGS, alias_rows
from cli.errors import CommandFailed, ExitCode
from cli.output import print_answer, print_listing

app = typer.Typer(name="alias", help="Second names of models, which requests may use as well.", no_args_is_help=True)

AliasName = Annotated[str, typer.Argument(metavar="ALIAS", help="The second name.", autocompletion=complete_alias)]
_PATH = "/puna/v1/aliases"


@app.command("set")
def set_alias(alias: AliasName, model: Model, as_json: Json = False) -> None:
    """Point a name to a model, whatever it pointed to before. It wins over a model of the same name."""
    answer = server().send("PUT", f"{_PATH}/{quote(alias, safe='')}", {"model": model})
    print_answer(answer, f"{answer.get('alias')} is {answer.get('model')}", as_json=as_json)


@app.command("rm")
def remove_alias(alias: AliasName, as_json: Json = False) -> None:
    """Forget a second name; the model stays."""
    answer = server().send("DELETE", f"{_PATH}/{quote(alias, safe='')}")
    if not answer.get("was_set"):
        raise CommandFailed(f"{alias} is no alias", ExitCode.NOT_FOUND)
    print_answer(answer, f"{answer.get('alias')} is no alias any more", as_json=as_json)


@app.command("list")
def list_aliases(as_json: Json = False) -> None:
    """List every second name, and the model that it points to."""
    answer = server().get(_PATH)
    print_listing(answer, ALIAS_HEADINGS, alias_rows(answer.get("aliases") or []), as_json=as_json)

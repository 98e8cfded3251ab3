"""`puna alias`."""

from typing import Annotated

import typer

from cli.arguments.common import Json, Model
from cli.completion import complete_alias

app = typer.Typer(name="alias", help="Second names of models, which requests may use as well.", no_args_is_help=True)

AliasName = Annotated[str, typer.Argument(metavar="ALIAS", help="The second name.", autocompletion=complete_alias)]


@app.command("set")
def set_alias(alias: AliasName, model: Model, as_json: Json = False) -> None:
    """Point a name to a model, whatever it pointed to before. It wins over a model of the same name."""
    from cli.commands import aliases as commands

    commands.set_to(alias, model, as_json=as_json)


@app.command("rm")
def remove_alias(alias: AliasName, as_json: Json = False) -> None:
    """Forget a second name; the model stays."""
    from cli.commands import aliases as commands

    commands.remove(alias, as_json=as_json)


@app.command("list")
def list_aliases(as_json: Json = False) -> None:
    """List every second name, and the model that it points to."""
    from cli.commands import aliases as commands

    commands.show_all(as_json=as_json)

"""`puna connect`."""

from typing import Annotated

import typer

from cli.completion import complete_client, complete_model

app = typer.Typer()


@app.command()
def connect(
    client: Annotated[
        str | None,
        typer.Argument(help="A program; without one: list them.", autocompletion=complete_client),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Name of a model. [default: the first that suits the client]",
            autocompletion=complete_model,
        ),
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Write the client's files; what else they say stays.")] = False,
    fix: Annotated[
        bool, typer.Option("--fix", help="Have the model loaded with the context that the client needs.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print settings and checks as JSON.")] = False,
) -> None:
    """Set up a coding agent or another client for this server. Checks that the model has what the client needs.

    puna connect claude-code --model qwen3:8b --write --fix
    """
    from cli.commands import connect as command

    if client is None:
        if model is not None or write or fix:
            raise typer.BadParameter("name a client", param_hint="CLIENT")
        command.list_clients(as_json=as_json)
        return
    command.connect(client, chosen=model, write=write, fix=fix, as_json=as_json)

"""`puna models`, `pull`, `create`, `show`, `rm` and `cp`."""

from pathlib import Path
from typing import Annotated

import typer

from cli.arguments.common import Json, JsonNews, Model
from cli.completion import complete_model

app = typer.Typer()


@app.command()
def models(as_json: Json = False) -> None:
    """List the models that can be used."""
    from cli.commands import listings

    listings.models(as_json=as_json)


@app.command()
def pull(
    name: Annotated[str, typer.Argument(help="[HOST/][NAMESPACE/]MODEL[:TAG], hf.co/USER/REPOSITORY:QUANTIZATION")],
    insecure: Annotated[bool, typer.Option("--insecure", help="Plain HTTP, if the server allows it there.")] = False,
    as_json: JsonNews = False,
) -> None:
    """Fetch a model from its registry. Ctrl-C stops; the next pull goes on from there."""
    from cli.commands import models as commands

    commands.pull(name, insecure=insecure, as_json=as_json)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="The new name.")],
    file: Annotated[Path, typer.Option("--file", "-f", metavar="FILE", help="A Modelfile.")] = Path("Modelfile"),
    as_json: JsonNews = False,
) -> None:
    """Make a model from a Modelfile. It names another model, or GGUF files of this machine, which are sent."""
    from cli.commands import models as commands

    commands.create(name, file, as_json=as_json)


@app.command()
def show(  # every argument is an option of the command line
    model: Model,
    modelfile: Annotated[bool, typer.Option("--modelfile", help="Only the Modelfile that makes it anew.")] = False,
    parameters: Annotated[bool, typer.Option("--parameters", help="Only its parameters.")] = False,
    template: Annotated[bool, typer.Option("--template", help="Only its template.")] = False,
    system: Annotated[bool, typer.Option("--system", help="Only its system message.")] = False,
    licence: Annotated[bool, typer.Option("--license", help="Only its license.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Long arrays, too; with --json.")] = False,
    as_json: Json = False,
) -> None:
    """Show what a model is and what it says of itself."""
    from cli.commands import models as commands

    wanted = (modelfile, parameters, template, system, licence)
    if sum(wanted) > 1:
        raise typer.BadParameter("only one of the texts can be shown at a time")
    only = next((text for text, is_wanted in zip(commands.TEXTS, wanted, strict=True) if is_wanted), None)
    commands.show(model, only=only, verbose=verbose, as_json=as_json)


@app.command("rm")
def remove(
    models: Annotated[list[str], typer.Argument(help="Names of models.", autocompletion=complete_model)],
    as_json: Annotated[bool, typer.Option("--json", help="Print which are deleted as JSON.")] = False,
) -> None:
    """Delete models. What they share with others stays; replicas that are busy finish first."""
    from cli.commands import models as commands

    commands.remove(models, as_json=as_json)


@app.command("cp")
def copy(source: Model, destination: Annotated[str, typer.Argument(help="Its second name.")]) -> None:
    """Give a model a second name."""
    from cli.commands import models as commands

    commands.copy(source, destination)

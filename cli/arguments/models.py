"""`puna models`, `pull`, `create`, `show`, `rm` and `cp`."""

import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from cli.arguments.common import Json, JsonNews, Model, server
from cli.completion import complete_model
from cli.core.listing_rows import MODEL_SPARE, model_table
from cli.core.shown_model import TEXTS, sections
from cli.errors import CommandFailed, ExitCode
from cli.output import print_json, print_listing, print_sections

app = typer.Typer()

_FORBIDDEN_TEXT = (
    "forbidden: no node may fetch from that registry like this (PUNA_REGISTRIES of the nodes; plain HTTP needs"
    " --insecure), or the key lacks the scope models:write"
)


@app.command()
def models(as_json: Json = False) -> None:
    """List the models that can be used."""
    answer = server().get("/api/tags")
    headings, rows = model_table(answer.get("models") or [], now_unix_s=time.time())
    print_listing(answer, headings, rows, as_json=as_json, spare=MODEL_SPARE)


@app.command()
def pull(
    name: Annotated[str, typer.Argument(help="[HOST/][NAMESPACE/]MODEL[:TAG], hf.co/USER/REPOSITORY:QUANTIZATION")],
    insecure: Annotated[bool, typer.Option("--insecure", help="Plain HTTP, if the server allows it there.")] = False,
    as_json: JsonNews = False,
) -> None:
    """Fetch a model from its registry. Ctrl-C stops; the next pull goes on from there."""
    from cli.progress import store_reporter

    news = server().stream("/api/pull", {"model": name, "insecure": insecure})
    try:
        with closing(news), store_reporter(as_json=as_json) as report:
            for one in news:
                report(one)
    except KeyboardInterrupt:
        text = f"stopped; what has come stays, and `puna pull {name}` goes on from there"
        raise CommandFailed(text, ExitCode.INTERRUPTED) from None
    except CommandFailed as error:
        if error.code is not ExitCode.REFUSED or str(error) != "forbidden":
            raise
        # The dialect has only that word, for every cause.
        raise CommandFailed(_FORBIDDEN_TEXT, ExitCode.REFUSED) from error


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="The new name.")],
    file: Annotated[Path, typer.Option("--file", "-f", metavar="FILE", help="A Modelfile.")] = Path("Modelfile"),
    as_json: JsonNews = False,
) -> None:
    """Make a model from a Modelfile. It names another model, or GGUF files of this machine, which are sent."""
    from cli.commands import create as command

    command.create(name, file, as_json=as_json)


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
    wanted = (modelfile, parameters, template, system, licence)
    if sum(wanted) > 1:
        raise typer.BadParameter("only one of the texts can be shown at a time")
    shown = server().send("POST", "/api/show", {"model": model, "verbose": verbose})
    only = next((text for text, is_wanted in zip(TEXTS, wanted, strict=True) if is_wanted), None)
    if as_json:
        print_json(shown)
    elif only is not None:
        text = str(shown.get(only) or "")
        sys.stdout.write(text if text.endswith("\n") or not text else text + "\n")
    else:
        print_sections(sections(model, shown))


@app.command("rm")
def remove(
    models: Annotated[list[str], typer.Argument(help="Names of models.", autocompletion=complete_model)],
    as_json: Annotated[bool, typer.Option("--json", help="Print which are deleted as JSON.")] = False,
) -> None:
    """Delete models. What they share with others stays; replicas that are busy finish first."""
    gateway = server()
    deleted: list[str] = []
    first: CommandFailed | None = None
    for name in models:
        try:
            gateway.ask("DELETE", "/api/delete", {"model": name})
        except CommandFailed as error:
            if error.code is ExitCode.UNREACHABLE:
                raise
            if first is None:
                first = error
            else:
                print(f"puna: {error}", file=sys.stderr)
            continue
        deleted.append(name)
        if not as_json:
            print(f"deleted {name}", flush=True)
    if as_json:
        print_json({"deleted": deleted})
    if first is not None:
        raise first


@app.command("cp")
def copy(source: Model, destination: Annotated[str, typer.Argument(help="Its second name.")]) -> None:
    """Give a model a second name."""
    server().ask("POST", "/api/copy", {"source": source, "destination": destination})
    print(f"copied {source} to {destination}")

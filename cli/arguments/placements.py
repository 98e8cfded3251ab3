"""`puna ps`, `placements`, `load`, `unload`, `explain` and `devices`."""

from typing import Annotated

import typer

from cli.arguments.common import Json, JsonNews, Loaded, Model, NumCtx
from cli.completion import complete_model

app = typer.Typer()
devices = typer.Typer(
    name="devices", help="What can be done about devices; `puna nodes` lists them.", no_args_is_help=True
)
app.add_typer(devices)


@app.command()
def ps(as_json: Json = False) -> None:
    """List the models that are loaded, and where."""
    from cli.commands import listings

    listings.ps(as_json=as_json)


@app.command()
def placements(
    model: Annotated[
        str | None,
        typer.Argument(help="One model; without one: all that something is set for.", autocompletion=complete_model),
    ] = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=VALUE", help="What to set; NAME for a switch, NAME= to forget one."),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Forget what is not named.")] = False,
    forget: Annotated[bool, typer.Option("--forget", help="Forget everything that is set for the model.")] = False,
    as_json: Json = False,
) -> None:
    """List or set what is wanted of models. Where they lie, how many replicas are kept, what is pinned.

    puna placements llama3:8b replicas_min=1 pinned devices=node-a/GPU-0
    """
    from cli.commands import placements as commands

    if model is not None and forget:
        commands.forget(model, as_json=as_json)
    elif model is not None and (words or replace):
        commands.change(model, words or [], replaces=replace, as_json=as_json)
    else:
        commands.show(model, as_json=as_json)


@app.command()
def load(
    model: Model,
    num_ctx: NumCtx = None,
    keep_alive: Annotated[
        str | None, typer.Option(metavar="TIME", help='How long it stays: "10m", -1 for ever.')
    ] = None,
    require_gpu: Annotated[bool, typer.Option("--require-gpu", help="Fail rather than use the CPU.")] = False,
    as_json: JsonNews = False,
) -> None:
    """Load a model, and say how that goes. At once, also after crashes that other loads wait for."""
    from cli.commands import placements as commands

    commands.load(model, num_ctx=num_ctx, keep_alive=keep_alive, require_gpu=require_gpu, as_json=as_json)


@app.command()
def unload(model: Loaded, as_json: Json = False) -> None:
    """Stop the replicas of a model once they are idle. Those that `puna placements` keeps stay."""
    from cli.commands import placements as commands

    commands.unload(model, as_json=as_json)


@app.command()
def explain(
    model: Model,
    num_ctx: Annotated[
        int | None, typer.Option(min=1, metavar="TOKENS", help="As if this context were asked for.")
    ] = None,
    require_gpu: Annotated[bool, typer.Option("--require-gpu", help="As if a GPU were required.")] = False,
    last: Annotated[bool, typer.Option("--last", help="The last decision, not a hypothetical one.")] = False,
    as_json: Json = False,
) -> None:
    """Say why a model lies where it does, or where it would go. With every figure."""
    from cli.commands import placements as commands

    commands.explain(model, num_ctx=num_ctx, require_gpu=require_gpu, last=last, as_json=as_json)


@devices.command()
def clear(
    device: Annotated[str, typer.Argument(help='Id or name of a device, alone or behind "node/".')],
    as_json: Json = False,
) -> None:
    """Have an excluded device tested again. What passes gets new placements. For models that crash: `puna load`."""
    from cli.commands import placements as commands

    commands.clear_device(device, as_json=as_json)

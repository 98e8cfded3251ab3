"""The `puna` command."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from cli.commands import cluster, listings
from cli.commands import keys as key_commands
from cli.commands import models as model_commands
from cli.commands import nodes as node_commands
from cli.commands import placements as placement_commands
from cli.commands import run as run_command
from cli.core.conversation import RunOptions
from cli.errors import CommandFailed
from common.errors import StartupError

app = typer.Typer(
    help="Serve GGUF models from the memory that your machines really have.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Home = Annotated[Path | None, typer.Option(help="State, sockets, logs and models. [default: $PUNA_HOME or ~/.puna]")]
Json = Annotated[bool, typer.Option("--json", help="Print what the server answered as JSON.")]
Port = typer.Option(min=0, max=65535, show_default=False)


@app.command()
def up(
    port: Annotated[int | None, Port] = None,
    grpc_port: Annotated[int | None, Port] = None,
    home: Home = None,
) -> None:
    """Serve on this machine until Ctrl-C: Redis, discovery, scheduler, host and gateway.

    Listens on 127.0.0.1:11434 (HTTP) and 127.0.0.1:11435 (gRPC) unless PUNA_HOST, PUNA_GRPC_HOST, --port or
    --grpc-port say otherwise; port 0 takes any free one.
    """
    cluster.up(port=port, grpc_port=grpc_port, home=home)


@app.command()
def down(home: Home = None) -> None:
    """Stop what `puna up` runs in a home."""
    cluster.down(home=home)


@app.command()
def run(  # noqa: PLR0913, PLR0917  # every argument is an option of the command line
    model: Annotated[str, typer.Argument(help="Name of a model; see `puna models`.")],
    question: Annotated[
        list[str] | None, typer.Argument(help="Without one: from standard input, else a dialogue.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 always gives the likeliest answer.")] = None,
    seed: Annotated[int | None, typer.Option(help="Repeats the random choices of an answer.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer in tokens.")] = None,
    keep_alive: Annotated[str | None, typer.Option(help='How long the model stays loaded: "10m", -1 for ever.')] = None,
    think: Annotated[bool | None, typer.Option("--think/--no-think", help="Let a model that can think do so.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Figures after each answer.")] = False,
) -> None:
    """Ask a model, and stream its answer."""
    options = RunOptions(
        system=system, temperature=temperature, seed=seed, max_tokens=max_tokens, keep_alive=keep_alive, think=think
    )
    sys.exit(run_command.run(model, question or [], options, verbose=verbose))


@app.command()
def ps(as_json: Json = False) -> None:
    """List the models that are loaded, and where."""
    listings.ps(as_json=as_json)


@app.command()
def nodes(as_json: Json = False) -> None:
    """List the machines, their devices and the memory that is free on them."""
    listings.nodes(as_json=as_json)


@app.command()
def models(as_json: Json = False) -> None:
    """List the models that can be used."""
    listings.models(as_json=as_json)


@app.command()
def pull(
    name: Annotated[str, typer.Argument(help="[HOST/][NAMESPACE/]MODEL[:TAG], hf.co/USER/REPOSITORY:QUANTIZATION")],
    insecure: Annotated[bool, typer.Option("--insecure", help="Plain HTTP, if the server allows it there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each line of news as JSON.")] = False,
) -> None:
    """Fetch a model from its registry. Ctrl-C stops; the next pull goes on from there."""
    sys.exit(model_commands.pull(name, insecure=insecure, as_json=as_json))


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="The new name.")],
    file: Annotated[Path, typer.Option("--file", "-f", help="A Modelfile.")] = Path("Modelfile"),
    as_json: Annotated[bool, typer.Option("--json", help="Print each line of news as JSON.")] = False,
) -> None:
    """Make a model from a Modelfile: from another model, or from GGUF files of this machine, which are sent."""
    sys.exit(model_commands.create(name, file, as_json=as_json))


@app.command()
def show(  # every argument is an option of the command line
    model: Annotated[str, typer.Argument(help="Name of a model; see `puna models`.")],
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
    only = next((text for text, wish in zip(model_commands.TEXTS, wanted, strict=True) if wish), None)
    model_commands.show(model, only=only, verbose=verbose, as_json=as_json)


@app.command("rm")
def remove(models: Annotated[list[str], typer.Argument(help="Names of models.")]) -> None:
    """Delete models. What they share with others stays; replicas that are busy finish first."""
    model_commands.remove(models)


@app.command("cp")
def copy(
    source: Annotated[str, typer.Argument(help="Name of a model.")],
    destination: Annotated[str, typer.Argument(help="Its second name.")],
) -> None:
    """Give a model a second name."""
    model_commands.copy(source, destination)


@app.command()
def placements(
    model: Annotated[str | None, typer.Argument(help="One model; without one: all that something is set for.")] = None,
    words: Annotated[
        list[str] | None, typer.Argument(help="What to set: NAME=VALUE, NAME for a switch, NAME= to forget one.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Forget what is not named.")] = False,
    forget: Annotated[bool, typer.Option("--forget", help="Forget everything that is set for the model.")] = False,
    as_json: Json = False,
) -> None:
    """List or set what is wanted of models: where they lie, how many replicas are kept, what is pinned.

    puna placements llama3:8b replicas_min=1 pinned devices=node-a/GPU-0
    """
    if model is not None and forget:
        placement_commands.forget(model)
    elif model is not None and (words or replace):
        placement_commands.change(model, words or [], replaces=replace, as_json=as_json)
    else:
        placement_commands.show(model, as_json=as_json)


@app.command()
def load(
    model: Annotated[str, typer.Argument(help="Name of a model; see `puna models`.")],
    num_ctx: Annotated[int | None, typer.Option(min=1, help="Context in tokens.")] = None,
    keep_alive: Annotated[str | None, typer.Option(help='How long it stays: "10m", -1 for ever.')] = None,
    require_gpu: Annotated[bool, typer.Option("--require-gpu", help="Fail rather than use the CPU.")] = False,
) -> None:
    """Load a model, and say how that goes."""
    placement_commands.load(model, num_ctx=num_ctx, keep_alive=keep_alive, require_gpu=require_gpu)


@app.command()
def unload(model: Annotated[str, typer.Argument(help="Name of a model; see `puna ps`.")]) -> None:
    """Stop the replicas of a model once they are idle; those that `puna placements` keeps stay."""
    placement_commands.unload(model)


@app.command()
def drain(
    node: Annotated[str, typer.Argument(help="Id of a node; see `puna nodes`.")],
    wait: Annotated[bool, typer.Option("--wait", help="Return when nothing runs there any more.")] = False,
    budget: Annotated[int | None, typer.Option(help="Seconds for running requests; 300 if not given.")] = None,
) -> None:
    """Take a node out of use: nothing new is placed there, and what runs there moves elsewhere or ends."""
    node_commands.drain(node, wait=wait, budget_s=budget)


@app.command()
def undrain(node: Annotated[str, typer.Argument(help="Id of a node.")]) -> None:
    """Put a drained node into use again."""
    node_commands.undrain(node)


devices_app = typer.Typer(help="What can be done about devices; `puna nodes` lists them.", no_args_is_help=True)
app.add_typer(devices_app, name="devices")


@devices_app.command()
def clear(
    device: Annotated[str, typer.Argument(help='Id or name of a device, alone or behind "node/".')],
    as_json: Json = False,
) -> None:
    """Have an excluded device tested again; what passes gets new placements."""
    placement_commands.clear_device(device, as_json=as_json)


keys_app = typer.Typer(
    help="Who may use a gateway: the keys in PUNA_API_KEYS_FILE, or those it keeps itself (--api).",
    no_args_is_help=True,
)
app.add_typer(keys_app, name="keys")

KeysFile = Annotated[
    Path | None, typer.Option("--file", help="The file of keys. [default: $PUNA_API_KEYS_FILE or $PUNA_HOME/keys.json]")
]
ViaApi = Annotated[bool, typer.Option("--api", help="Ask the gateway (PUNA_HOST, PUNA_API_KEY) instead of the file.")]
KeyId = Annotated[str, typer.Argument(help="Id of a key; see `puna keys list`.")]


@keys_app.command("create")
def create_key(  # noqa: PLR0913, PLR0917  # every argument is an option of the command line
    owner: Annotated[str, typer.Option(help="Whose key it is; one owner has at most two that are good.")],
    scope: Annotated[
        list[str] | None, typer.Option(help="What it is good for, several times. [default: infer, embed, models:read]")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="With whom it shares in slots. [default: the owner]")] = None,
    model: Annotated[list[str] | None, typer.Option(help="Only this model, several times.")] = None,
    network: Annotated[list[str] | None, typer.Option(help="Only from there, several times: 10.0.0.0/8.")] = None,
    band: Annotated[str, typer.Option(help="high, normal or low: who is served first.")] = "normal",
    weight: Annotated[int, typer.Option(min=1, max=1000, help="Share in slots beside other tenants.")] = 1,
    rpm: Annotated[int | None, typer.Option(min=1, help="Most requests a minute.")] = None,
    tpm: Annotated[int | None, typer.Option(min=1, help="Most tokens a minute.")] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Most requests at once.")] = None,
    tpd: Annotated[int | None, typer.Option(min=1, help="Most tokens a day.")] = None,
    expires: Annotated[str | None, typer.Option(help='How long it is good: "720h".')] = None,
    file: KeysFile = None,
    via_api: ViaApi = False,
    as_json: Json = False,
) -> None:
    """Make a key, and show it this once."""
    wish = key_commands.KeyWish(
        owner=owner,
        tenant=tenant or owner,
        scopes=tuple(scope or key_commands.DEFAULT_SCOPES),
        models=tuple(model or ()),
        networks=tuple(network or ()),
        band=band,
        weight=weight,
        requests_per_minute=rpm,
        tokens_per_minute=tpm,
        concurrency=concurrency,
        tokens_per_day=tpd,
        expires=expires,
    )
    if via_api:
        key_commands.create_at_gateway(wish, as_json=as_json)
    else:
        key_commands.create(wish, file, as_json=as_json)


@keys_app.command("list")
def list_keys(file: KeysFile = None, via_api: ViaApi = False, as_json: Json = False) -> None:
    """List every key, revoked ones too."""
    if via_api:
        key_commands.show_all_of_gateway(as_json=as_json)
    else:
        key_commands.show_all(file, as_json=as_json)


@keys_app.command("show")
def show_key(key: KeyId, file: KeysFile = None, via_api: ViaApi = False, as_json: Json = False) -> None:
    """Show what a key may do; its secret is not kept."""
    if via_api:
        key_commands.show_at_gateway(key, as_json=as_json)
    else:
        key_commands.show(key, file, as_json=as_json)


@keys_app.command("revoke")
def revoke_key(key: KeyId, file: KeysFile = None, via_api: ViaApi = False, as_json: Json = False) -> None:
    """Make a key useless, within five seconds on every gateway that knows it. It stays as a tombstone."""
    if via_api:
        key_commands.revoke_at_gateway(key, as_json=as_json)
    else:
        key_commands.revoke(key, file, as_json=as_json)


@app.command()
def explain(
    model: Annotated[str, typer.Argument(help="Name of a model; see `puna models`.")],
    num_ctx: Annotated[int | None, typer.Option(min=1, help="As if this context were asked for.")] = None,
    require_gpu: Annotated[bool, typer.Option("--require-gpu", help="As if a GPU were required.")] = False,
    last: Annotated[bool, typer.Option("--last", help="The last decision, not a hypothetical one.")] = False,
    as_json: Json = False,
) -> None:
    """Say why a model lies where it does, or where it would go, with every figure."""
    placement_commands.explain(model, num_ctx=num_ctx, require_gpu=require_gpu, last=last, as_json=as_json)


@app.command()
def version(as_json: Json = False) -> None:
    """Print the version of this command and of the server."""
    listings.version(as_json=as_json)


def main() -> None:
    """Run the command line; a failure is one line and status 1, wrong usage status 2."""
    try:
        app()
    except (CommandFailed, StartupError) as error:
        print(f"puna: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()

"""`puna ps`, `placements`, `load`, `unload`, `explain`, `forget` and `devices`."""

import time
from contextlib import closing
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import typer

from cli.arguments.common import Json, JsonNews, Loaded, Model, NumCtx, server
from cli.completion import complete_model
from cli.core.constraint_words import WORDS_TEXT, constraints_of_words
from cli.core.conversation import number_if_one
from cli.core.explain_text import explain_lines, prompt_lines
from cli.core.listing_rows import (
    CONSTRAINT_HEADINGS,
    LOADED_HEADINGS,
    LOADED_SPARE,
    constraint_rows,
    crashed_rows,
    loaded_rows,
)
from cli.errors import CommandFailed, ExitCode
from cli.output import print_answer, print_json, print_listing

app = typer.Typer()
devices = typer.Typer(
    name="devices", help="What can be done about devices; `puna nodes` lists them.", no_args_is_help=True
)
app.add_typer(devices)

_CRASHES_WITHIN_S = 1.0
# A test of a device has 30 s, and may wait for the one before it.
_TEST_WITHIN_S = 75.0
_PATH = "/puna/v1/placements"
_EXPLAIN = "/puna/v1/explain"


@app.command()
def ps(as_json: Json = False) -> None:
    """List the models that are loaded, and where."""
    answer, crashes, now_unix_s = server().get("/api/ps"), _crash_rows(), time.time()
    loaded = loaded_rows(answer.get("models") or [], now_unix_s=now_unix_s)
    rows = [*loaded, *crashed_rows(crashes, now_unix_s=now_unix_s)]
    print_listing({**answer, "crash_rows": crashes}, LOADED_HEADINGS, rows, as_json=as_json, spare=LOADED_SPARE)


def _crash_rows() -> list[dict[str, Any]]:
    """Of all nodes; none where the server has no such page, or no scheduler answers soon: what is loaded is known."""
    try:
        nodes = server().get("/puna/v1/nodes", answer_within_s=_CRASHES_WITHIN_S).get("nodes") or []
    except CommandFailed:
        return []
    return [row for node in nodes for row in node.get("crash_rows") or []]


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
    path = _PATH if model is None else f"{_PATH}/{quote(model, safe='')}"
    if model is not None and forget:
        answer = server().send("DELETE", path)
        print_answer(answer, "forgotten" if answer.get("was_set") else "nothing was set", as_json=as_json)
        return
    if model is not None and (words or replace):
        answer = _changed(path, words or [], replaces=replace)
    else:
        answer = server().get(path)
    models = answer.get("models") if model is None else [answer]
    print_listing(answer, CONSTRAINT_HEADINGS, constraint_rows(models or []), as_json=as_json)


def _changed(path: str, words: list[str], *, replaces: bool) -> dict[str, Any]:
    """Set what is wanted of a model; what is not named stays, unless everything is replaced."""
    gateway = server()
    try:
        wanted = constraints_of_words(words)
    except ValueError as error:
        raise CommandFailed(f"{error} ({WORDS_TEXT})", ExitCode.USAGE) from error
    before: dict[str, Any] = {} if replaces else dict(gateway.get(path).get("constraints") or {})
    return gateway.send("PUT", path, {name: value for name, value in {**before, **wanted}.items() if value is not None})


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
    options: dict[str, Any] = {"num_ctx": num_ctx, "require_gpu": require_gpu or None}
    alive = None if keep_alive is None else number_if_one(keep_alive)
    _follow("load", {"model": model, "keep_alive": alive, "options": options}, as_json=as_json)


@app.command()
def move(
    model: Loaded,
    to: Annotated[str, typer.Option("--to", metavar="NODE", help="Where it goes.")],
    as_json: JsonNews = False,
) -> None:
    """Move a model to another node: it is loaded there, then ends where it was. Running answers go on."""
    _follow("move", {"model": model, "node": to}, as_json=as_json)


def _follow(act: str, body: dict[str, Any], *, as_json: bool) -> None:
    from cli.progress import load_reporter

    news = server().stream(f"/puna/v1/{act}", body)
    try:
        with closing(news), load_reporter(body["model"], as_json=as_json) as report:
            for one in news:
                report(one)
    except KeyboardInterrupt:
        raise CommandFailed(f"not waited for any more; the {act} goes on", ExitCode.INTERRUPTED) from None


@app.command()
def unload(model: Loaded, as_json: Json = False) -> None:
    """Stop the replicas of a model once they are idle. Those that `puna placements` keeps stay."""
    answer = server().send("POST", "/puna/v1/unload", {"model": model})
    count = answer.get("replicas", 0)
    print_answer(answer, f"{count} replica{'' if count == 1 else 's'} will stop once idle", as_json=as_json)


@app.command()
def explain(
    model: Model,
    num_ctx: Annotated[
        int | None, typer.Option(min=1, metavar="TOKENS", help="As if this context were asked for.")
    ] = None,
    require_gpu: Annotated[bool, typer.Option("--require-gpu", help="As if a GPU were required.")] = False,
    last: Annotated[bool, typer.Option("--last", help="The last decision, not a hypothetical one.")] = False,
    prompt: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT|FILE", help="The replica that a request with it would go to; a file may hold messages."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say why a model lies where it does, or where it would go; with --prompt, where a request would go."""
    if prompt is not None:
        _explain_prompt(model, prompt, is_alone=num_ctx is None and not require_gpu and not last, as_json=as_json)
        return
    options = {"num_ctx": num_ctx, "require_gpu": int(require_gpu), "last": int(last)}
    query = urlencode({"model": model, **{name: value for name, value in options.items() if value}})
    answer = server().get(f"{_EXPLAIN}?{query}")
    if as_json:
        print_json(answer)
        return
    for line in explain_lines(answer, now_unix_s=time.time()):
        print(line)


def _explain_prompt(model: str, prompt: str, *, is_alone: bool, as_json: bool) -> None:
    from cli.commands.question_files import read_prompt

    if not is_alone:
        raise CommandFailed("--prompt asks about replicas that run; give no other option with it", ExitCode.USAGE)
    answer = server().send("POST", f"{_EXPLAIN}/prompt", {"model": model, **read_prompt(prompt)})
    if as_json:
        print_json(answer)
        return
    for line in prompt_lines(answer):
        print(line)


@devices.command()
def clear(
    device: Annotated[str, typer.Argument(help='Id or name of a device, alone or behind "node/".')],
    as_json: Json = False,
) -> None:
    """Have an excluded device tested again. What passes gets new placements. For models that crash: `puna load`."""
    answer = server().send("POST", "/puna/v1/devices/clear", {"device": device}, answer_within_s=_TEST_WITHIN_S)
    reason = answer.get("state_reason")
    text = f"{answer.get('node')}/{answer.get('name')}: {answer.get('state')}" + (f", {reason}" if reason else "")
    print_answer(answer, text, as_json=as_json)


@app.command()
def forget(
    tenant: Annotated[
        str, typer.Option(metavar="NAME", help="Whose; without it, what was saved for callers without a key.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Drop the saved conversations of a tenant on every node, and what idle slots hold of it.

    Needs the right admin:cluster. Answers in progress go on, and nothing of them is saved.
    """
    answer = server().send("POST", "/puna/v1/states/forget", {"tenant": tenant})
    nodes = answer.get("nodes") or []
    states, size = (sum(int(node[name]) for node in nodes) for name in ("states", "bytes"))
    print_answer(answer, f"dropped {states} saved states ({size} bytes) on {len(nodes)} nodes", as_json=as_json)
    failed = [f"{node['node']}: {node['error']}" for node in nodes if node["error"]]
    if failed:
        raise CommandFailed("not everything was dropped: " + "; ".join(failed), ExitCode.FAILED)

"""`puna bench`, `top`, `doctor` and `audit`."""

from pathlib import Path
from typing import Annotated

import typer

from cli.arguments.common import Model

app = typer.Typer()


@app.command()
def bench(
    model: Model,
    concurrency: Annotated[
        str, typer.Option(metavar="NUMBERS", help="How many clients ask at once, level after level.")
    ] = "1,2,4",
    requests: Annotated[
        int | None,
        typer.Option(min=1, metavar="NUMBER", help="Requests at each level. [default: four for each client]"),
    ] = None,
    prompt_tokens: Annotated[int, typer.Option(min=1, metavar="TOKENS", help="Length of a prompt, about.")] = 128,
    answer_tokens: Annotated[
        int, typer.Option(min=1, metavar="TOKENS", help="Longest answer; a model may end before.")
    ] = 64,
    shared: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, metavar="PART", help="Share of the prompt that is the same in all requests."),
    ] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure how fast a served model answers. Time to the first token, tokens/s, and what caches save."""
    from cli.commands import bench as command
    from cli.core.bench_figures import concurrency_list

    try:
        levels = concurrency_list(concurrency)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--concurrency") from error
    options = command.BenchOptions(
        model=model,
        concurrency=levels,
        requests=requests,
        prompt_tokens=prompt_tokens,
        answer_tokens=answer_tokens,
        shared=shared,
    )
    command.bench(options, as_json=as_json)


@app.command()
def top(
    once: Annotated[bool, typer.Option("--once", help="Print the state once, after about a second.")] = False,
    all_models: Annotated[bool, typer.Option("--all", "-a", help="Include models without requests.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the state once as JSON.")] = False,
) -> None:
    """Watch nodes, devices, models and requests as they change. q or Ctrl-C leaves."""
    from cli.commands import top as command

    command.top(once=once, every_model=all_models, as_json=as_json)


@app.command()
def doctor(
    settings: Annotated[bool, typer.Option("--settings", help="Every setting that is in effect, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print findings and settings as JSON.")] = False,
) -> None:
    """Look for what is wrong, and say what to do. Engine, devices, disks, Redis, ports, clocks, settings, server.

    Changes nothing, and needs no cluster. Exit status 1 if something failed.
    """
    from cli.commands import doctor as command

    command.doctor(with_settings=settings, as_json=as_json)


@app.command()
def audit(
    file: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="A PUNA_AUDIT_LOG; files that it was moved to before it.")
    ],
) -> None:
    """Check that no line of an audit log was changed, inserted or removed. Prints the last line's hash."""
    from cli.errors import CommandFailed
    from common.audit.chain import ChainBrokenError, check_chain, last_hash

    try:
        lines = [line for one in file for line in one.read_bytes().splitlines()]
        count = check_chain(lines)
    except OSError as error:
        raise CommandFailed(f"{error.filename}: {error.strerror}") from error
    except ChainBrokenError as error:
        raise CommandFailed(f"{' '.join(map(str, file))}: {error}") from error
    print(f"{count} lines, none changed; the last one has the hash {last_hash(lines[-1]) if lines else 'of no line'}")

"""`puna run` and `puna chat`."""

import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.arguments.common import KeepAlive, Model, server
from cli.core.conversation import RunOptions, join_question
from cli.errors import CommandFailed, ExitCode

app = typer.Typer()

System = Annotated[str | None, typer.Option(metavar="TEXT", help="System message.")]
Temperature = Annotated[float | None, typer.Option(metavar="NUMBER", help="0 always gives the likeliest answer.")]
Seed = Annotated[int | None, typer.Option(metavar="NUMBER", help="Repeats the random choices of an answer.")]
MaxTokens = Annotated[int | None, typer.Option(min=1, metavar="TOKENS", help="Longest answer.")]
Option = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", metavar="NAME=VALUE", help="Any other option, several times: top_p=0.9, stop=END."),
]
Think = Annotated[bool | None, typer.Option("--think/--no-think", help="Let a model that can think do so.")]
Format = Annotated[
    str | None,
    typer.Option("--format", metavar="FORMAT", help='"json", or a file with the JSON schema that the answer matches.'),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Figures after each answer.")]


@app.command()
def run(  # noqa: PLR0913, PLR0917  # every argument is an option of the command line
    model: Model,
    question: Annotated[
        list[str] | None,
        typer.Argument(metavar="QUESTION", help="Without one: from standard input, else a dialogue."),
    ] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option(
            "--file", "-f", metavar="FILE", help="Text before the question, or an image for a model that sees."
        ),
    ] = None,
    system: System = None,
    answer_format: Format = None,
    temperature: Temperature = None,
    seed: Seed = None,
    max_tokens: MaxTokens = None,
    option: Option = None,
    keep_alive: KeepAlive = None,
    think: Think = None,
    verbose: Verbose = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="The whole answer as one JSON object, as POST /api/chat gives it.")
    ] = False,
) -> None:
    """Ask a model, and stream its answer."""
    from cli.commands.dialogue import Dialogue, Talk
    from cli.commands.question_files import read_attachment

    named = {"temperature": temperature, "seed": seed, "num_predict": max_tokens}
    options = _run_options(answer_format, option, named, system=system, keep_alive=keep_alive, think=think)
    attached = [read_attachment(path) for path in file or []]
    images = [one.image for one in attached if one.image is not None]
    texts = [one.text for one in attached if one.text is not None]
    talk = Talk(server(), model, options, verbose=verbose, as_json=as_json)
    try:
        asked = join_question(question or [], [*texts, *(() if (piped := _piped()) is None else (piped,))])
    except ValueError as error:
        raise CommandFailed(str(error)) from error
    if asked is None:
        if as_json:
            raise CommandFailed("--json needs a question", ExitCode.USAGE)
        Dialogue(talk, images).run()
    elif not talk.ask(asked, images):
        raise CommandFailed("the answer was stopped", ExitCode.INTERRUPTED)


@app.command()
def chat(  # noqa: PLR0913, PLR0917  # every argument is an option of the command line
    model: Model,
    system: System = None,
    answer_format: Format = None,
    temperature: Temperature = None,
    seed: Seed = None,
    max_tokens: MaxTokens = None,
    option: Option = None,
    keep_alive: KeepAlive = None,
    think: Think = None,
    verbose: Verbose = False,
) -> None:
    """Talk to a model. /help lists what can be said beside questions; lines of a pipe are read likewise."""
    from cli.commands.dialogue import Dialogue, Talk

    named = {"temperature": temperature, "seed": seed, "num_predict": max_tokens}
    options = _run_options(answer_format, option, named, system=system, keep_alive=keep_alive, think=think)
    Dialogue(Talk(server(), model, options, verbose=verbose)).run()


def _piped() -> str | None:
    """Read the standard input if it is a pipe or a file; None for a terminal, a closed input and /dev/null."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return None
    return sys.stdin.read() if stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode) else None


def _run_options(
    answer_format: str | None, words: list[str] | None, named: Mapping[str, object], **fields: Any
) -> RunOptions:
    from cli.commands.question_files import read_format
    from cli.core.parameter_values import option_values

    schema = None if answer_format is None else read_format(answer_format)
    pairs = [(name.strip(), value) for name, _, value in (word.partition("=") for word in words or [])]
    if not all(name and value for name, value in pairs):
        raise typer.BadParameter("write NAME=VALUE", param_hint="--option")
    try:
        options = option_values(pairs) | {name: value for name, value in named.items() if value is not None}
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--option") from error
    return RunOptions(answer_format=schema, options=options, **fields)

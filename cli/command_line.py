"""All commands of `puna` as one command line, and what their failures look like."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from cli.arguments import aliases, answers, chaos, cluster, connect, keys, models, placements, tokens, trust, watching
from cli.core.server_address import CA_VARIABLE
from cli.errors import MEANINGS, CommandFailed, ExitCode
from common.startup_error import StartupError

_PROGRAM = "puna"

app = typer.Typer(
    help="Serve GGUF models from the memory that your machines really have.",
    epilog="Exit status: " + "; ".join(f"{code.value} {MEANINGS[code]}" for code in ExitCode) + ".",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for group in (cluster, connect, answers, models, aliases, placements, watching, keys, trust, tokens, chaos):
    app.add_typer(group.app)


def _print_version(wanted: bool) -> None:
    from common.version import puna_version  # noqa: PLC0415  # see cli/arguments

    if wanted:
        print(f"{_PROGRAM} {puna_version()}")
        raise typer.Exit


@app.callback()
def of_every_command(
    cacert: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Certificates of the authorities that servers are trusted by. [default: $SSL_CERT_FILE]",
        ),
    ] = None,
    version: Annotated[  # noqa: ARG001  # its callback ends the program
        bool,
        typer.Option("--version", help="Print this command's version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Serve GGUF models from the memory that your machines really have."""
    if cacert is not None:
        # For commands, and for the completions that a shell asks this program for.
        os.environ[CA_VARIABLE] = str(cacert)


def run() -> None:
    """Run the command line; a failure is one line, and the status says which kind it is."""
    try:
        app(prog_name=_PROGRAM)
    except (CommandFailed, StartupError) as error:
        print(f"{_PROGRAM}: {error}", file=sys.stderr)
        sys.exit(error.code if isinstance(error, CommandFailed) else ExitCode.FAILED)

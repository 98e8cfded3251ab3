"""Arguments that several commands have, and the server that they ask."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.completion import complete_loaded, complete_model, complete_node

if TYPE_CHECKING:
    from cli.server import Server

Home = Annotated[
    Path | None,
    typer.Option(metavar="DIRECTORY", help="State, sockets, logs and models. [default: $PUNA_HOME or ~/.puna]"),
]
Json = Annotated[bool, typer.Option("--json", help="Print what the server answered as JSON.")]
JsonNews = Annotated[bool, typer.Option("--json", help="Print each line of news as JSON.")]
Model = Annotated[str, typer.Argument(help="Name of a model; see `puna models`.", autocompletion=complete_model)]
Loaded = Annotated[str, typer.Argument(help="Name of a model; see `puna ps`.", autocompletion=complete_loaded)]
Node = Annotated[str, typer.Argument(help="Id of a node; see `puna nodes`.", autocompletion=complete_node)]
KeepAlive = Annotated[
    str | None, typer.Option(metavar="TIME", help='How long the model stays loaded: "10m", -1 for ever.')
]
NumCtx = Annotated[int | None, typer.Option(min=1, metavar="TOKENS", help="Context of a slot.")]


def server() -> "Server":
    """Return the gateway of the environment's settings; HTTP is loaded when it is asked for.

    Raises:
        CommandFailed: PUNA_HOST is no address, or the key or the certificates cannot be read.
    """
    from cli.server import Server

    return Server.of()

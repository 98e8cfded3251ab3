"""Arguments that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

from cli.completion import complete_loaded, complete_model, complete_node

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

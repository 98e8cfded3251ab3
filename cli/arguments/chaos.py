"""`puna chaos`."""

import signal
from enum import StrEnum
from typing import Annotated

import typer

from cli.arguments.common import Home, server
from cli.errors import CommandFailed, ExitCode

app = typer.Typer()


class FaultKind(StrEnum):
    """Kinds of faults."""

    KILL = "kill"
    STOP = "stop"
    BLOCK = "block"
    DISK = "disk"
    MEMORY = "memory"
    CUT = "cut"
    SLOW = "slow"
    CLOCK = "clock"


@app.command()
def chaos(  # noqa: PLR0913, PLR0917  # every argument is an option of the command line
    fault: Annotated[
        FaultKind,
        typer.Argument(
            help="kill, stop: a runner or a service. block: the engine thread of a runner. disk: fill it. "
            "memory: take that of a device. cut, slow: the link from this machine to another one (as root). "
            "clock: the wall clock of a service."
        ),
    ],
    target: Annotated[
        str,
        typer.Argument(
            help="kill, stop, block: a model, or the id of a placement; kill, stop, clock: redis, discovery, host, "
            'scheduler or gateway of this machine\'s cluster. disk: "models" or "home". memory: the id of a device. '
            "cut, slow: a node, or an address."
        ),
    ],
    node: Annotated[str, typer.Option(metavar="ID", help="Where, if there are several; see `puna nodes`.")] = "",
    duration: Annotated[str, typer.Option("--for", metavar="TIME", help="How long, at most 1h.")] = "30s",
    leave: Annotated[str, typer.Option(metavar="SIZE", help="disk, memory: what stays free.")] = "0",
    rate: Annotated[str, typer.Option(metavar="SIZE", help="slow: what passes in a second, each way.")] = "1MiB",
    by: Annotated[str, typer.Option(metavar="TIME", help="clock: how far it is ahead; -5m: behind.")] = "5m",
    yes: Annotated[bool, typer.Option("--yes", help="Required: requests may be slower, and may fail.")] = False,
    home: Home = None,
) -> None:
    """Break something on purpose, for exercises. It is undone after its time, and with Ctrl-C.

    Needs the right admin:cluster. Nodes and gateways with PUNA_PRODUCTION=1 refuse.
    """
    if not yes:
        raise CommandFailed("this breaks a part of a running cluster; repeat it with --yes", ExitCode.USAGE)
    from cli.commands.chaos import Order, carry_out
    from cli.settings import CliSettings
    from common.byte_sizes import parse_byte_size
    from common.durations import parse_go_duration_ms

    try:
        duration_s, skew_s = parse_go_duration_ms(duration) / 1000, parse_go_duration_ms(by) // 1000
        leave_bytes, rate_bytes_s = parse_byte_size(leave), parse_byte_size(rate)
    except ValueError as error:
        raise CommandFailed(str(error), ExitCode.USAGE) from error
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # undo it, as after Ctrl-C
    order = Order(
        fault=fault,
        target=target,
        node=node,
        duration_s=duration_s,
        leave_bytes=leave_bytes,
        rate_bytes_s=rate_bytes_s,
        skew_s=skew_s,
    )
    carry_out(server(), order, home=home or CliSettings.load().home, say=lambda text: print(text, flush=True))

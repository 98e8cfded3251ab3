"""`puna up` and `puna down`."""

import sys
from contextlib import suppress
from pathlib import Path

from cli.core.server_address import DEFAULT_GRPC_PORT, DEFAULT_PORT, listen_address
from cli.errors import CommandFailed
from cli.settings import CliSettings
from common.network import split_host_port


def up(*, port: int | None, grpc_port: int | None, home: Path | None, address: str = "", join: str = "") -> None:
    """Start the cluster of a home, or join another machine's, and stay until it is stopped."""
    # Other commands start without what only this one needs.
    from cli.cluster.joining import discovery_of, own_address_towards  # noqa: PLC0415
    from cli.cluster.plan import FreePort, UpRequest  # noqa: PLC0415
    from cli.cluster.up import bring_up  # noqa: PLC0415

    settings = CliSettings.load()
    try:
        http = listen_address(settings.host, port=port, default_port=DEFAULT_PORT)
        grpc = listen_address(settings.grpc_host, port=grpc_port, default_port=DEFAULT_GRPC_PORT)
    except ValueError as error:
        raise CommandFailed(str(error)) from error
    if split_host_port(http)[1] == 0:
        http = FreePort().address()
    if split_host_port(grpc)[1] == 0:
        grpc = FreePort().address()
    joined = discovery_of(join) if join else ""
    request = UpRequest(
        home=home or settings.home,
        http=http,
        grpc=grpc,
        models=settings.models.expanduser().resolve() if settings.models else None,
        redis_url=settings.redis_url,
        tls=settings.tls_cert is not None,
        opened=address or (own_address_towards(joined) if joined else ""),
        joined=joined,
    )
    bring_up(request, say=_say, warn=_warn)


def down(*, home: Path | None) -> None:
    """Stop the cluster of a home."""
    from cli.cluster.up import take_down  # noqa: PLC0415

    take_down(home or CliSettings.load().home, say=_say)


# A closed terminal takes no output; the cluster must stop in order all the same.
def _say(text: str) -> None:
    with suppress(OSError):
        print(text, flush=True)


def _warn(text: str) -> None:
    with suppress(OSError):
        print(f"puna: {text}", file=sys.stderr, flush=True)

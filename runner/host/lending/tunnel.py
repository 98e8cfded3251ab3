"""The host's own end of every tunnel: its identity, its listener and the address under which others reach it."""

import asyncio
from dataclasses import dataclass

from common.errors import StartupError
from common.network import UNIX_PREFIX, split_host_port
from runner.host.home import HostHome
from runner.host.lending.lease import Leases
from runner.host.lending.tunnel_identity import TunnelIdentity, make_identity
from runner.host.lending.tunnel_listener import TunnelListener
from runner.host.settings import HostSettings

_WILDCARDS = frozenset({"0.0.0.0", "::", ""})


@dataclass(frozen=True, slots=True)
class Tunnel:
    """Listens from its opening on; accepts while `run` runs."""

    identity: TunnelIdentity
    address: str
    _listener: TunnelListener

    async def run(self) -> None:
        """Accept connections until cancelled."""
        await self._listener.run()

    @property
    def certificate(self) -> bytes:
        """DER, for others to pin."""
        return self.identity.certificate


def open_tunnel(settings: HostSettings, home: HostHome, *, node_id: str, leases: Leases) -> Tunnel | None:
    """Open the tunnel if this node lends and borrows; None if not.

    Raises:
        StartupError: the address is taken, or others could not dial it.
    """
    if not settings.rpc:
        return None
    identity = make_identity(home.directory / "tunnel.pem", node_id=node_id)
    listener = TunnelListener(identity, leases)
    bound = listener.listen(settings.tunnel_listen or _beside(settings.node_listen))
    return Tunnel(identity, _advertised(bound, settings), listener)


def _beside(node_listen: str) -> str:
    """Return an address with a free port on the host's own interface, so that others reach both alike."""
    if node_listen.startswith(UNIX_PREFIX):
        return "127.0.0.1:0"
    host = split_host_port(node_listen)[0]
    return f"[{host}]:0" if ":" in host else f"{host}:0"


def _advertised(bound: str, settings: HostSettings) -> str:
    host, port = split_host_port(bound)
    wanted = settings.tunnel_advertise
    if not wanted and settings.node_advertise:
        wanted = split_host_port(settings.node_advertise)[0]
    if not wanted and host in _WILDCARDS:
        raise StartupError(
            f"others cannot dial {bound}; set PUNA_TUNNEL_ADVERTISE to the host name under which they reach this node"
        )
    wanted = wanted or host
    return f"[{wanted}]:{port}" if ":" in wanted else f"{wanted}:{port}"


async def run_tunnel(tunnel: Tunnel | None) -> None:
    """Serve the tunnel, if there is one, until cancelled."""
    if tunnel is None:
        await asyncio.Event().wait()
    else:
        await tunnel.run()

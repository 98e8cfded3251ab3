"""Several machines: what the first one opens for others, and how another one joins it."""

import asyncio
import socket
import time
from collections.abc import Callable
from pathlib import Path

import grpc

from cli.cluster.enrolment import explain_silence
from cli.cluster.readiness import grpc_serves
from cli.errors import CommandFailed
from common.audit.acts import ActLog
from common.grpc.client import open_channel
from common.network import is_taken, join_host_port, split_host_port
from common.startup_error import StartupError
from common.trust.authority import Authority
from common.trust.roles import Role
from protos import discovery_pb2, discovery_pb2_grpc

DISCOVERY_PORT = 7601
NODE_PORT = 7603
_ANSWERS_WITHIN_S = 10.0
_RETRY_INTERVAL_S = 0.1
_RENEWAL_INTERVAL_S = 60.0
# New authorities reach the nodes of other machines in a fraction of it (cli/cluster/enrolment.py).
SPREAD_S = 120.0


def check_own_address(address: str) -> None:
    """Raise CommandFailed if it is no address of this machine, or another process listens on Puna's port of it."""
    try:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError as error:
        raise CommandFailed(f"{address} is no address of this machine ({error.strerror})") from error
    if is_taken(node := join_host_port(address, NODE_PORT)):
        raise CommandFailed(f"{node} is already in use")


def discovery_of(cluster: str) -> str:
    """`host:port` of the discovery that is meant by `host` or `host:port`."""
    try:
        return join_host_port(*split_host_port(cluster))
    except ValueError:
        return join_host_port(cluster.removeprefix("[").removesuffix("]"), DISCOVERY_PORT)


def identity_directory(trust: Path, role: Role, node_id: str = "") -> Path:
    """Return the directory of one process of this machine below that of `puna trust`.

    Raises:
        CommandFailed: it is not clear which node this machine is.
    """
    directory = trust / role
    if role is not Role.NODE:
        return directory
    if node_id:
        return directory / node_id
    found = [path for path in directory.glob("*") if path.is_dir()]
    if len(found) != 1:
        raise CommandFailed(f"{directory} has {len(found)} nodes; set PUNA_NODE_ID to that of this machine")
    return found[0]


async def renew_certificates(trust: Path | None, acts: ActLog, warn: Callable[[str], None]) -> None:
    """Renew certificates that are due, on the machine that has the authority; runs for ever there.

    Not at once after a rotation: nodes on other machines have to know the authority before they meet it.
    """
    while trust is not None:
        authority = Authority(trust, acts=acts)
        try:
            if not authority.exists:
                return
            if time.time() > authority.replaced_at_unix_s + SPREAD_S:
                await asyncio.to_thread(authority.renew)
        except (StartupError, OSError) as error:
            warn(f"certificates are not renewed: {error}")
        await asyncio.sleep(_RENEWAL_INTERVAL_S)


def own_address_towards(other: str) -> str:
    """Return the address that this machine has on the way to `host:port`. Nothing is sent.

    Raises:
        CommandFailed: the name is unknown, or there is no way.
    """
    host, port = split_host_port(other)
    try:
        family, kind, *_, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as way:
            way.connect(target)
            address: str = way.getsockname()[0]
            return address
    except OSError as error:
        raise CommandFailed(f"{other} cannot be reached: {error.strerror}") from error


async def wait_for_discovery(address: str, certificate: Path | None) -> None:
    """Wait until the discovery answers to the certificate of this machine; raise CommandFailed if it does not."""
    try:
        async with asyncio.timeout(_ANSWERS_WITHIN_S):
            await grpc_serves(address, Role.DISCOVERY)
    except TimeoutError:
        reason = await explain_silence(address, certificate) if certificate is not None else ""
        host = split_host_port(address)[0]
        raise CommandFailed(
            reason or f"nothing answers at {address}; start the cluster there with `puna up --address {host}`"
        ) from None


async def node_is_registered(discovery: str, node: str) -> None:
    """Wait until the inventory has the node that is dialled there."""
    while True:
        async with open_channel(discovery, Role.DISCOVERY) as channel:
            watch = discovery_pb2_grpc.DiscoveryStub(channel).WatchInventory
            try:
                async for inventory in watch(discovery_pb2.WatchInventoryRequest()):
                    if any(one.address == node for one in inventory.nodes):
                        return
            except grpc.RpcError:
                await asyncio.sleep(_RETRY_INTERVAL_S)

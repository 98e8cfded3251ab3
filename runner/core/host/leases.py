"""Decisions about a Lend when the host may already lend to the placement. Pure.

| a lease of this placement is | Lend | Stop |
|---|---|---|
| not here | make it | done |
| of the same generation, same terms | the one that exists | end it |
| of the same generation, other terms, not in use | replace it | end it |
| of the same generation, other terms, in use | refuse | end it |
| of a lower generation | replace it | end it |
| of a higher generation | refuse | leave it |
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from common.errors import PlacementMismatch
from runner.core.host.promises import MemoryNeed

RPC_ID_PREFIX = "RPC:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Terms of a lease. Equal terms mean the same lease."""

    borrower_certificate: bytes
    shares: tuple["Share", ...]

    def need(self) -> MemoryNeed:
        """Return the bytes of all shares."""
        return MemoryNeed(
            weights_bytes={share.device_id: share.weights_bytes for share in self.shares},
            later_bytes={share.device_id: share.later_bytes for share in self.shares},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One device to be lent."""

    device_id: str
    weights_bytes: int
    later_bytes: int  # cache, graph and projector
    max_bytes: int  # 0: no limit

    @property
    def planned_bytes(self) -> int:
        """All classes."""
        return self.weights_bytes + self.later_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Lent:
    """A lease as it is now."""

    generation: int
    terms: Terms
    in_use: bool


class LendAction(Enum):
    """Action that a Lend leads to."""

    MAKE = auto()
    KEEP = auto()
    REPLACE = auto()


def decide_lend(lent: Lent | None, *, generation: int, terms: Terms) -> LendAction:
    """See the table above.

    Raises:
        PlacementMismatch: the caller's view is old, or the borrower uses the lease under other terms.
    """
    if lent is None:
        return LendAction.MAKE
    if generation > lent.generation:
        return LendAction.REPLACE
    if generation < lent.generation:
        raise PlacementMismatch(f"generation {lent.generation} of this placement is lent to, {generation} is older")
    if terms == lent.terms:
        return LendAction.KEEP
    if lent.in_use:
        raise PlacementMismatch(f"generation {generation} of this placement uses what is lent to it under other terms")
    return LendAction.REPLACE


@dataclass(frozen=True, slots=True, kw_only=True)
class LentAt:
    """Address at which the borrower finds a device."""

    channel: int
    rpc_device: int


def plan_channels(device_ids: Sequence[str]) -> tuple[list[str], dict[str, LentAt]]:
    """Share devices out to RPC servers; return the address of each channel, and where the borrower finds each device.

    What is an RPC device of this node is reached through its own server, "host:port". All others come first, in one
    channel without an address: a process of ours.
    """
    plain = [device_id for device_id in device_ids if rpc_server_of(device_id) is None]
    addresses = [""] if plain else []
    found = {device_id: LentAt(channel=0, rpc_device=index) for index, device_id in enumerate(plain)}
    for device_id in device_ids:
        if server := rpc_server_of(device_id):
            address, number = server
            if address not in addresses:
                addresses.append(address)
            found[device_id] = LentAt(channel=addresses.index(address), rpc_device=number)
    return addresses, found


def rpc_server_of(device_id: str) -> tuple[str, int] | None:
    """Address and number of a device that is an RPC server's, from its id; None for any other."""
    if not device_id.startswith(RPC_ID_PREFIX):
        return None
    address, separator, number = device_id.removeprefix(RPC_ID_PREFIX).rpartition("/")
    return (address, int(number)) if separator and number.isdecimal() else None


def servers_of(device_ids: Iterable[str]) -> frozenset[str]:
    """Addresses of the RPC servers among them. Each serves one client at a time."""
    return frozenset(server[0] for device_id in device_ids if (server := rpc_server_of(device_id)) is not None)

"""Operator's settings for devices: amounts of memory by device, and RPC servers that belong to the node. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from common.byte_sizes import parse_byte_size

EVERY_DEVICE = "*"
_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%")
_PERCENT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """So many bytes, or a share of what the device has."""

    count_bytes: int = 0
    share: float = 0.0

    def of(self, total_bytes: int) -> int:
        """In bytes."""
        return self.count_bytes + int(self.share * total_bytes)


class RpcPool(StrEnum):
    """Memory pool that the devices of an RPC server use."""

    AUTO = "auto"  # RAM; a pool of their own within it where the server reports less than the machine has
    HOST = "host"  # RAM
    OWN = "own"  # memory that is not this machine's RAM


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcServer:
    """An RPC server whose devices belong to this node. `address` is "host:port"."""

    address: str
    pool: RpcPool = RpcPool.AUTO


def parse_amount(text: str) -> Amount:
    """Read "512MiB", "2G", "1073741824" or "5%".

    Raises:
        ValueError: it is none of these; the text says so.
    """
    share = _SHARE.fullmatch(text.strip())
    if share is not None:
        if float(share[1]) > _PERCENT:
            raise ValueError(f"{text.strip()!r} is more than all of it")
        return Amount(share=float(share[1]) / _PERCENT)
    try:
        return Amount(count_bytes=parse_byte_size(text))
    except ValueError as error:
        raise ValueError(f"{text.strip()!r} is no size; write 512MiB, 2GiB or 5%") from error


def parse_amounts(text: str) -> dict[str, Amount]:
    """Read "AMOUNT" or "DEVICE=AMOUNT,DEVICE=AMOUNT,AMOUNT": by device id, EVERY_DEVICE for all others but the CPU.

    Raises:
        ValueError: as `parse_amount`, or a device twice.
    """
    amounts: dict[str, Amount] = {}
    for entry in _entries(text):
        device_id, _, amount = entry.rpartition("=")
        device_id = device_id.strip() or EVERY_DEVICE
        if device_id in amounts:
            raise ValueError(f"two amounts for {device_id}")
        amounts[device_id] = parse_amount(amount)
    return amounts


def amount_for(amounts: Mapping[str, Amount], device_id: str, *, is_cpu: bool) -> Amount | None:
    """Return the setting for a device, or None. RAM has a reserve of its own and is only meant when it is named."""
    return amounts.get(device_id) or (None if is_cpu else amounts.get(EVERY_DEVICE))


def parse_rpc_servers(text: str) -> tuple[RpcServer, ...]:
    """Read "host:port,host:port=own"; what follows the equals sign is an RpcPool.

    Raises:
        ValueError: no such pool, or a server twice. The address is not looked at.
    """
    servers: dict[str, RpcServer] = {}
    for entry in _entries(text):
        address, _, pool = entry.partition("=")
        if address in servers:
            raise ValueError(f"{address} is named twice")
        try:
            servers[address] = RpcServer(address=address, pool=RpcPool(pool or RpcPool.AUTO))
        except ValueError as error:
            raise ValueError(f"{pool!r} is no pool; write auto, host or own") from error
    return tuple(servers.values())


def parse_device_ids(text: str) -> frozenset[str]:
    """Read "DEVICE,DEVICE"."""
    return frozenset(_entries(text))


def _entries(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",") if entry.strip()]


class IntegratedGpus(StrEnum):
    """Policy for integrated GPUs."""

    AUTO = "auto"  # only where there is no discrete one
    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSettings:
    """Everything that the configuration says about devices. Amounts are by device id, as `amount_for` reads them."""

    rpc_servers: tuple[RpcServer, ...] = ()
    overheads: Mapping[str, Amount] = field(default_factory=dict)
    caps: Mapping[str, Amount] = field(default_factory=dict)
    reserves: Mapping[str, Amount] = field(default_factory=dict)
    environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by device id, "*" for all
    excluded: frozenset[str] = frozenset()
    integrated: IntegratedGpus = IntegratedGpus.AUTO
    reprobe_s: float = 60.0
    probe_timeout_s: float = 30.0
    count_swap: bool = False  # as RAM

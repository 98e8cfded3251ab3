"""Identity of the engine's devices: stable ids and memory pools. Pure."""

from dataclasses import dataclass
from enum import IntEnum

# Every device that draws from the node's RAM: the CPU, integrated GPUs. Never added up.
HOST_POOL = "host"
CPU_ID = "cpu"


class DeviceType(IntEnum):
    """As puna.v1.DeviceType."""

    CPU = 1
    GPU = 2
    INTEGRATED = 3
    ACCELERATOR = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDevice:
    """One device as the engine lists it. `endpoint` is "host:port" of an RPC device, else empty."""

    name: str
    backend: str
    description: str
    pci_id: str
    type: DeviceType
    total_bytes: int
    free_bytes: int
    free_source: str = "ggml"
    endpoint: str = ""
    lent_number: int = 0  # which of the devices of its RPC server
    uuid: str = ""  # as the driver names the card; empty where it names none


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceIdentity:
    """Names that outlive a restart, as far as the hardware has any."""

    id: str
    stable: bool
    pool_id: str


def identify(device: EngineDevice) -> DeviceIdentity:
    """GPU UUID, else PCI address, else `backend:name`; never an index. The node's CPU is always "cpu"."""
    if device.endpoint:
        pool_id = f"{device.backend}:{device.endpoint}"
        return DeviceIdentity(id=f"{pool_id}/{device.lent_number}", stable=False, pool_id=pool_id)
    if device.type is DeviceType.CPU:
        return DeviceIdentity(id=CPU_ID, stable=True, pool_id=HOST_POOL)
    given = device.uuid or device.pci_id
    device_id = given or f"{device.backend}:{device.name}"
    shares_ram = device.type in (DeviceType.INTEGRATED, DeviceType.ACCELERATOR)
    return DeviceIdentity(id=device_id, stable=bool(given), pool_id=HOST_POOL if shares_ram else device_id)

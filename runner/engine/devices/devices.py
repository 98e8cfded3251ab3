"""The devices that this build of the engine can use."""

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass

import llama_cpp
import llama_cpp.llama_cpp as llama

from common.errors import InvalidRequest
from common.network import split_host_port
from common.spec.layout import Layout
from runner.core.devices.dedupe import backend_rank
from runner.core.devices.devices import DeviceIdentity, DeviceType, EngineDevice, identify
from runner.core.devices.gpu_memory import GpuMemory, find_seen
from runner.core.host.environment import cards_left
from runner.engine.bindings import ggml
from runner.engine.devices.rpc_hello import rpc_hello
from runner.gpu_memory import known_cards

RPC_HELLO_TIMEOUT_S = 2.0
RPC_BACKEND = "RPC"
RPC_MISSING = "llama-cpp-python was built without GGML_RPC, so devices of other nodes cannot be used; run make setup"

_TYPES = {
    ggml.DEVICE_TYPE_CPU: DeviceType.CPU,
    ggml.DEVICE_TYPE_GPU: DeviceType.GPU,
    ggml.DEVICE_TYPE_INTEGRATED: DeviceType.INTEGRATED,
    ggml.DEVICE_TYPE_ACCELERATOR: DeviceType.ACCELERATOR,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenDevice:
    """A device and the engine's pointer to it, valid for the life of this process."""

    facts: EngineDevice
    identity: DeviceIdentity
    pointer: int


def engine_build() -> str:
    """Names what must be equal for KV state and RPC to be shared between processes."""
    version = ggml.bind_optional("ggml_version", ctypes.c_char_p)
    return f"llama-cpp-python {llama_cpp.__version__}" + (f", ggml {_text(version())}" if version is not None else "")


def backends() -> list[str]:
    """Return the ggml backends that are compiled in, e.g. "CPU", "RPC", "CUDA"."""
    return [_text(ggml.registry_name(ggml.registry_get(index))) for index in range(ggml.registry_count())]


def has_rpc() -> bool:
    """Return True if this build can use devices of other nodes."""
    return ggml.rpc_add_server is not None and RPC_BACKEND in backends()


def open_devices(rpc_endpoints: Sequence[str] = ()) -> list[OpenDevice]:
    """Initialise the engine's backends and list their devices in the engine's order, lent ones last.

    On GPUs this creates a context of some hundred MiB that lives as long as the process.

    Raises:
        RpcUnusable: an endpoint does not answer in time.
        ValueError: an endpoint is not host:port, or this build has no RPC.
    """
    llama.llama_backend_init()
    pointers = [ggml.device_get(index) for index in range(ggml.device_count())]
    cards = known_cards() if any(_properties(pointer).device_id for pointer in pointers) else []
    local = [_open(pointer, cards) for pointer in pointers]
    lent = [
        _open(pointer, [], endpoint=endpoint, lent_number=number)
        for endpoint in rpc_endpoints
        for number, pointer in enumerate(_add_rpc_server(endpoint))
    ]
    return local + lent


def open_layout_devices(layout: Layout, rpc_endpoints: Sequence[str] = ()) -> dict[str, int]:
    """Return the engine's pointer to each device that a layout may name, by device id.

    Devices with an address are opened there. `rpc_endpoints` are servers whose devices go by the engine's own names.

    Raises:
        RpcUnusable: a server does not answer in time.
        InvalidRequest: a server lends no device of that number, an address is malformed, or this build has no RPC.
    """
    if not layout.devices:
        return {}
    try:
        # A card that two backends list has one id: the better backend's entry is the last one to be noted.
        opened = sorted(open_devices(rpc_endpoints), key=lambda device: -backend_rank(device.facts.backend))
        addresses = {device.rpc_address for device in layout.devices} - {""}
        lent = {address: _add_rpc_server(address) for address in addresses}
    except ValueError as error:
        raise InvalidRequest(str(error), param="devices") from error
    pointers = {device.identity.id: device.pointer for device in opened}
    for device in layout.devices:
        if device.rpc_address:
            numbered = lent[device.rpc_address]
            if device.rpc_device >= len(numbered):
                where = f"{device.rpc_address} lends {len(numbered)} devices"
                raise InvalidRequest(f"device {device.device_id!r}: {where}, none with number {device.rpc_device}")
            pointers[device.device_id] = numbered[device.rpc_device]
    return pointers


def _add_rpc_server(endpoint: str) -> list[int]:
    host, port = split_host_port(endpoint)
    if ggml.rpc_add_server is None:
        raise ValueError(RPC_MISSING)
    rpc_hello(host, port, timeout_s=RPC_HELLO_TIMEOUT_S)
    registry = ggml.rpc_add_server(endpoint.encode())
    if not registry:
        raise ValueError(f"the engine refuses the RPC server {endpoint}")
    return [ggml.registry_device_get(registry, index) for index in range(ggml.registry_device_count(registry))]


def _open(pointer: int, cards: list[GpuMemory], *, endpoint: str = "", lent_number: int = 0) -> OpenDevice:
    properties = _properties(pointer)
    pci_id = _text(properties.device_id)
    visible = cards_left([card.uuid for card in cards], backend="CUDA", limits=os.environ)
    card = find_seen(cards, pci_id, visible)
    facts = EngineDevice(
        name=_text(properties.name),
        backend=_text(ggml.registry_name(ggml.device_registry(pointer))),
        description=_text(properties.description),
        pci_id=pci_id,
        type=_TYPES.get(properties.type, DeviceType.ACCELERATOR),
        total_bytes=properties.memory_total,
        free_bytes=card.free_bytes if card is not None and card.source else properties.memory_free,
        free_source=card.source if card is not None and card.source else "ggml",
        uuid="" if card is None else card.device_id or card.uuid,
        endpoint=endpoint,
        lent_number=lent_number,
    )
    return OpenDevice(facts=facts, identity=identify(facts), pointer=pointer)


def free_bytes(pointer: int) -> int:
    """Return the free memory of a device now, as its backend says."""
    return _properties(pointer).memory_free


def _properties(pointer: int) -> ggml.DeviceProperties:
    properties = ggml.DeviceProperties()
    ggml.device_properties(pointer, ctypes.byref(properties))
    return properties


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode(errors="replace").strip()


LOOPBACK = "127.0.0.1"


def serve_devices(port: int, pointers: Sequence[int], *, threads: int) -> None:
    """Serve one client after another until the process ends; returns only if the port could not be had.

    No cache directory: what a client sends is not kept on this machine.

    Raises:
        ValueError: this build has no RPC.
    """
    if ggml.rpc_start_server is None:
        raise ValueError("llama-cpp-python was built without GGML_RPC, so devices cannot be lent; run make setup")
    devices = (ctypes.c_void_p * len(pointers))(*pointers)
    ggml.rpc_start_server(f"{LOOPBACK}:{port}".encode(), None, threads, len(pointers), devices)

"""Asks the RPC servers that belong to this node what they lend. Never one that is in use: it would not answer."""

import asyncio
from dataclasses import dataclass

from common.network import split_host_port
from protos import cluster_pb2
from runner.core.devices.device_settings import RpcServer
from runner.core.devices.devices import HOST_POOL, DeviceType, EngineDevice, identify
from runner.core.devices.free_figures import lent_figure, shares_ram
from runner.core.devices.memory import HostMemory
from runner.engine.devices.rpc_hello import RpcMemory, RpcUnusable, rpc_hello

RPC_BACKEND = "RPC"
HELLO_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAnswer:
    """`lent` is empty without an answer. `gone`: there is no server; a busy one only keeps silent."""

    server: RpcServer
    lent: tuple[RpcMemory, ...] = ()
    gone: bool = False
    reason: str = ""


async def ask_server(server: RpcServer) -> ServerAnswer:
    """Say hello, with a deadline."""
    host, port = split_host_port(server.address)
    try:
        lent = await asyncio.to_thread(rpc_hello, host, port, timeout_s=HELLO_TIMEOUT_S)
    except RpcUnusable as error:
        return ServerAnswer(server=server, gone=not isinstance(error.__cause__, TimeoutError), reason=str(error))
    return ServerAnswer(server=server, lent=lent)


def lent_device_id(server: RpcServer, number: int) -> str:
    """Return the id of a device that a server lends."""
    return f"{RPC_BACKEND}:{server.address}/{number}"


def to_device(server: RpcServer, number: int, memory: RpcMemory, ram: HostMemory) -> cluster_pb2.Device:
    """Return a lent device as the node reports it, before its test."""
    facts = EngineDevice(
        name=f"{RPC_BACKEND} {server.address}/{number}",
        backend=RPC_BACKEND,
        description=f"lent by {server.address}",
        pci_id="",
        type=DeviceType.GPU,
        total_bytes=memory.total_bytes,
        free_bytes=memory.free_bytes,
        endpoint=server.address,
        lent_number=number,
    )
    figure = lent_figure(memory.total_bytes, memory.free_bytes, server.pool, ram)
    identity = identify(facts)
    whole = shares_ram(memory.total_bytes, server.pool, ram)
    own = server.pool.value == "own"
    return cluster_pb2.Device(
        id=identity.id,
        name=facts.name,
        backend=facts.backend,
        description=facts.description,
        type=cluster_pb2.DEVICE_TYPE_GPU,
        total_bytes=figure.total_bytes,
        free_bytes=figure.free_bytes,
        free_source=figure.source,
        trust=cluster_pb2.TRUST_MEASURED,
        pool_id=HOST_POOL if whole else identity.pool_id,
        backing_pool_id="" if whole or own else HOST_POOL,
        id_stable=False,
    )

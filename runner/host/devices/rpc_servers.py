"""Asks the RPC servers that belong to this node what they lend. Never one that is in use: it would not answer."""

import asyncio
from dataclasses import dataclass

from common.network import split_host_port
from protos import cluster_pb2
from runner.core.devices.device_settings import RpcPool, RpcServer
from runner.core.devices.devices import HOST_POOL
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


def unseen_device(server: RpcServer, number: int) -> cluster_pb2.Device:
    """Return a lent device as far as its address shows it."""
    return cluster_pb2.Device(
        id=lent_device_id(server, number),
        name=f"{RPC_BACKEND} {server.address}/{number}",
        backend=RPC_BACKEND,
        type=cluster_pb2.DEVICE_TYPE_GPU,
        pool_id=f"{RPC_BACKEND}:{server.address}",
    )


def to_device(server: RpcServer, number: int, memory: RpcMemory, ram: HostMemory) -> cluster_pb2.Device:
    """Return a lent device as the node reports it, before its test."""
    device = unseen_device(server, number)
    device.description = f"lent by {server.address}"
    figure = lent_figure(memory.total_bytes, memory.free_bytes, server.pool, ram)
    device.total_bytes, device.free_bytes, device.free_source = figure.total_bytes, figure.free_bytes, figure.source
    device.trust = cluster_pb2.TRUST_MEASURED
    if shares_ram(memory.total_bytes, server.pool, ram):
        device.pool_id = HOST_POOL
    elif server.pool is not RpcPool.OWN:
        device.backing_pool_id = HOST_POOL
    return device

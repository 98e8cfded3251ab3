"""A process that SIGKILL does not end: it holds what it holds, and its devices get nothing new until it has gone.

A tracer makes one. A process that is traced to its exit stops there, killed as it is, until the tracer lets go: as
one that hangs in a driver, it is neither alive nor to be reaped.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from common.errors import ModelUnavailable
from protos import cluster_pb2
from runner.core.devices.devices import CPU_ID
from runner.host.processes.stopping import REAP_TIMEOUT_S
from tests.integration.host.node import SMALL, Inventory, Node, is_alive, runners_of, running_node
from tests.limited_device import limited_device
from tests.waiting import Stopwatch

_SEIZE, _DETACH, _STOP_AT_EXIT = 0x4206, 17, 0x40  # of <sys/ptrace.h>
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


@contextmanager
def kept_from_ending(pid: int) -> Iterator[None]:
    """Trace a process, so that it stops where it would end."""
    if _libc.ptrace(_SEIZE, pid, None, _STOP_AT_EXIT) != 0:
        pytest.skip(f"processes cannot be traced here: {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        _libc.ptrace(_DETACH, pid, None, None)


def device_of(inventory: Inventory, device_id: str) -> cluster_pb2.Device:
    found = (device for node in inventory.nodes for device in node.devices if device.id == device_id)
    return next(found, cluster_pb2.Device())


@pytest.mark.behaviour("B-137")
async def test_what_sigkill_does_not_end_stays_in_the_books_and_its_device_gets_nothing_until_it_is_gone(
    models_directory: Path, tmp_path: Path
) -> None:
    with limited_device(mib=64) as device:
        async with running_node(tmp_path, models_directory, PUNA_RPC_DEVICES=device.address) as node:
            await node.inventory(lambda now: device_of(now, device.id).state == cluster_pb2.DEVICE_STATE_OK)
            layout = cluster_pb2.Layout()
            layout.CopyFrom(SMALL)
            layout.devices.add(device_id=device.id, layer_count=9)
            await check(node, device.id, layout)


async def test_a_node_whose_ram_it_holds_takes_nothing_new(models_directory: Path, tmp_path: Path) -> None:
    async with running_node(tmp_path, models_directory) as node:
        await check(node, CPU_ID, SMALL)


async def check(node: Node, device_id: str, layout: cluster_pb2.Layout) -> None:
    """Stop a runner that cannot end, look at what is said of it, let it end, and start it anew."""
    request = await node.start_request(layout=layout)
    record = await node.run(request)
    assert record.status.state == cluster_pb2.RUNNER_STATE_READY

    def is_suspect(now: Inventory) -> bool:
        return device_of(now, device_id).state == cluster_pb2.DEVICE_STATE_SUSPECT

    with kept_from_ending(record.pid):
        with pytest.raises(ModelUnavailable, match=f"process {record.pid} has not ended"):
            await node.stop(request)
        found = await node.inventory(is_suspect)
        reason = device_of(found, device_id).state_reason
        assert f"process {record.pid} has not ended" in reason
        assert request.placement.placement_id in reason
        (held,) = runners_of(found)
        assert held.status.state == cluster_pb2.RUNNER_STATE_NOT_RESPONDING
        assert held.status.memory == record.status.memory, "what it holds stays in the books"
        watch = Stopwatch()
        with pytest.raises(ModelUnavailable):
            await node.stop(request)
        again_s = watch.wall_s
    await node.inventory(lambda now: not runners_of(now) and not is_suspect(now))
    assert not is_alive(record.pid)
    request.placement.generation += 1
    assert (await node.run(request)).status.state == cluster_pb2.RUNNER_STATE_READY
    await node.stop(request)
    watch.assert_within(REAP_TIMEOUT_S, "the second stop does not wait again", took_s=again_s)

"""`python -m runner probe`: what the engine of this build can compute on. Loads no model and ends at once.

A separate, short-lived process, because initialising a GPU backend takes some hundred MiB of its memory until the
process ends, and because an unsupported GPU aborts it. With `--check ID` it tests one device: it computes there and
copies inside it. With `--hold ID` it takes the device's memory until standard input ends, for `puna chaos`.
"""

import argparse
import contextlib
import sys
from pathlib import Path

from google.protobuf import json_format

from protos import cluster_pb2, probe_pb2
from runner.core.devices.devices import HOST_POOL, DeviceType
from runner.core.devices.memory import HostMemory
from runner.engine.bindings import ggml
from runner.engine.devices import devices as engine
from runner.engine.devices.device_check import DeviceBroken, check_device, measure_speed
from runner.engine.devices.rpc_hello import RpcUnusable
from runner.ram import read_host_memory

EXIT_NOT_LISTED = 6
EXIT_BROKEN = 7
_PIECE_BYTES_MAX, _PIECE_BYTES_MIN = 2**28, 2**20

_TYPES = {
    DeviceType.CPU: cluster_pb2.DEVICE_TYPE_CPU,
    DeviceType.GPU: cluster_pb2.DEVICE_TYPE_GPU,
    DeviceType.INTEGRATED: cluster_pb2.DEVICE_TYPE_INTEGRATED,
    DeviceType.ACCELERATOR: cluster_pb2.DEVICE_TYPE_ACCELERATOR,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this mode."""
    parser.add_argument(
        "--rpc", action="append", default=[], metavar="HOST:PORT", help="also list the devices lent by this RPC server"
    )
    parser.add_argument(
        "--check", default="", metavar="ID", help="test this device alone: compute a graph, time a copy"
    )
    parser.add_argument("--backend", default="", help="of the device to test, where several backends list it")
    parser.add_argument("--hold", default="", metavar="ID", help="take the memory of this device until input ends")
    parser.add_argument("--leave", type=int, default=0, metavar="BYTES", help="with --hold: what stays free")
    parser.add_argument("--no-speed", action="store_true", help="compute only; the speed is known")


def run(args: argparse.Namespace) -> int:
    """Print the report as JSON.

    0 success, 1 an RPC server is unusable, 6 the device to test is not listed, 7 it does not compute.
    """
    if not engine.has_rpc():
        print(f"puna runner probe: warning: {engine.RPC_MISSING}", file=sys.stderr)
    try:
        if args.hold:
            print(hold_memory(args.hold, args.backend, args.rpc, leave_bytes=args.leave), flush=True)
            sys.stdin.read()
            return 0
        if args.check:
            report = test_device(args.check, args.backend, args.rpc, speed=not args.no_speed)
        else:
            report = list_devices(args.rpc)
        print(json_format.MessageToJson(report, preserving_proto_field_name=True))
    except (RpcUnusable, ValueError) as error:
        return _refuse(str(error), 1)
    except DeviceNotListed as error:
        return _refuse(str(error), EXIT_NOT_LISTED)
    except DeviceBroken as error:
        return _refuse(str(error), EXIT_BROKEN)
    return 0


class DeviceNotListed(Exception):
    """The engine does not list the device when it can see no other."""


def list_devices(rpc_endpoints: list[str]) -> probe_pb2.ProbeReport:
    """Ask the engine, and the kernel about RAM.

    Raises:
        RpcUnusable, ValueError: as `open_devices`.
    """
    opened = engine.open_devices(rpc_endpoints)
    ram = read_host_memory()
    return probe_pb2.ProbeReport(
        engine_build=engine.engine_build(),
        backends=engine.backends(),
        devices=[_to_device(device, ram) for device in opened],
    )


def test_device(device_id: str, backend: str, rpc_endpoints: list[str], *, speed: bool) -> probe_pb2.ProbeReport:
    """Compute on one device; the report has it alone, with its speed.

    Raises:
        DeviceNotListed, DeviceBroken: use it for nothing.
        RpcUnusable, ValueError: as `open_devices`.
    """
    ram = read_host_memory()
    device = _find(device_id, backend, rpc_endpoints)
    check_device(device.pointer)
    message = _to_device(device, ram)
    if speed:
        message.speed_bytes_s = measure_speed(device.pointer, free_bytes=message.free_bytes)
    return probe_pb2.ProbeReport(engine_build=engine.engine_build(), devices=[message])


def hold_memory(device_id: str, backend: str, rpc_endpoints: list[str], *, leave_bytes: int) -> int:
    """Take the memory of one device for as long as this process lives, and return the bytes.

    Raises:
        DeviceNotListed, RpcUnusable, ValueError: as `test_device`.
    """
    with contextlib.suppress(OSError):  # not on Linux
        Path("/proc/self/oom_score_adj").write_text("1000")  # where RAM ends, this process does
    device = _find(device_id, backend, rpc_endpoints)
    held, piece = 0, _PIECE_BYTES_MAX
    while piece >= _PIECE_BYTES_MIN:
        is_ram = device.identity.pool_id == HOST_POOL
        room = read_host_memory().free_bytes if is_ram else engine.free_bytes(device.pointer)
        piece = min(piece, room - leave_bytes)
        buffer = ggml.allocate_buffer(ggml.device_buffer_type(device.pointer), piece) if piece > 0 else None
        if buffer:
            ggml.clear_buffer(buffer, 1)  # memory that nothing was written to is not taken
            held += piece
        else:
            piece //= 2
    return held


def _find(device_id: str, backend: str, rpc_endpoints: list[str]) -> engine.OpenDevice:
    for device in engine.open_devices(rpc_endpoints):
        if device.identity.id == device_id and backend in ("", device.facts.backend):
            return device
    raise DeviceNotListed(f"the engine does not list {device_id}")


def _refuse(text: str, status: int) -> int:
    print(f"puna runner probe: {text}", file=sys.stderr)
    return status


def _to_device(device: engine.OpenDevice, ram: HostMemory) -> cluster_pb2.Device:
    facts, identity = device.facts, device.identity
    message = cluster_pb2.Device(
        id=identity.id,
        name=facts.name,
        backend=facts.backend,
        description=facts.description,
        pci_id=facts.pci_id,
        type=_TYPES[facts.type],
        total_bytes=facts.total_bytes,
        free_bytes=facts.free_bytes,
        free_source="rpc" if facts.endpoint else facts.free_source,
        trust=cluster_pb2.TRUST_MEASURED,
        pool_id=identity.pool_id,
        state=cluster_pb2.DEVICE_STATE_OK,
        id_stable=identity.stable,
    )
    if identity.pool_id == HOST_POOL:
        # The engine's CPU device says that all physical RAM is free.
        message.total_bytes = min(ram.total_bytes, facts.total_bytes) if facts.total_bytes else ram.total_bytes
        message.free_bytes = min(ram.free_bytes, message.total_bytes)
        message.free_source = ram.source
    return message

"""Devices for tests: a process that lends this machine's CPU as an RPC device with a memory limit that is real.

llama.cpp takes such a device for a GPU: layouts over several devices, refused allocations and peers that die are real
on a machine without one. The limit is reported (free and total) and enforced: an allocation beyond it is refused, just
as a full GPU refuses it. The stock server has no limit, so the CPU device's memory query and its buffer allocation are
replaced inside the lending process. One process lends one pool of memory; for two devices start two.

    with limited_device(mib=64) as device:
        layout = Layout(devices=(DeviceLayers("gpu-a", 9, rpc_address=device.address),), ...)
        device.used_bytes()            # what the engine holds there now
        device.take()                  # a hog: nothing is left; take(leave_bytes=n) leaves that much
        device.give_back()             # the hog leaves
        device.kill()                  # the peer dies

In a host's environment: PUNA_RPC_DEVICES=",".join(device.address for device in devices). In a layout as JSON:
{"devices": [{"device_id": "gpu-a", "layer_count": 9, "rpc_address": device.address}]}. `runner probe|measure --rpc
ADDRESS` names the device `device.id`. A server serves one client at a time: while a runner holds memory there, nobody
else gets an answer, so ask `used_bytes()` here and not through RPC.

By hand: `python -m tests.limited_device --port 5001 --mib 64` (ends with Ctrl-C).
"""

import argparse
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.engine.devices.rpc_hello import RpcUnusable, rpc_hello
from tests.ports import free_port
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[1]
MIB = 1024 * 1024
START_DEADLINE_S = 60.0
ANSWER_DEADLINE_S = 60.0  # a Python interpreter starts meanwhile, with the engine
_POINTER_BYTES = ctypes.sizeof(ctypes.c_void_p)
# Function tables of ggml: struct ggml_backend_device begins with get_name, get_description, get_memory; struct
# ggml_backend_buffer_type with get_name, alloc_buffer; struct ggml_backend_buffer with free_buffer.
_GET_MEMORY_SLOT, _ALLOCATE_SLOT, _FREE_SLOT = 2, 1, 0


@dataclass(frozen=True, slots=True)
class LimitedDevice:
    """A running lender, and the line to it."""

    port: int
    total_bytes: int
    process: "subprocess.Popen[bytes]"
    _control: socket.socket

    @property
    def address(self) -> str:
        """Return the address as a layout's `rpc_address` and PUNA_RPC_DEVICES take it."""
        return f"127.0.0.1:{self.port}"

    @property
    def id(self) -> str:
        """Return the id that a probe of the server gives the device."""
        return f"RPC:{self.address}/0"

    def used_bytes(self) -> int:
        """Return the bytes that clients hold, without the hog."""
        return int(self._ask({"do": "tell"})["used_bytes"])

    def refusals(self) -> list[int]:
        """Sizes of the allocations that were refused so far, in order."""
        return [int(size) for size in self._ask({"do": "tell"})["refusals"]]

    def take(self, *, leave_bytes: int = 0) -> None:
        """Fill the device up, but for `leave_bytes`."""
        self._ask({"do": "take", "leave_bytes": leave_bytes})

    def give_back(self) -> None:
        """Free what `take` took."""
        self._ask({"do": "give_back"})

    def kill(self) -> None:
        """End the process at once, as a machine that goes down."""
        self.process.kill()
        self.process.wait()

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        self._control.sendall(json.dumps(command).encode() + b"\n")
        with self._control.makefile("rb") as lines:
            answer: dict[str, Any] = json.loads(lines.readline())
        return answer


@contextmanager
def limited_device(*, mib: float, devices: int = 1, port: int = 0, namespace: str = "") -> Iterator[LimitedDevice]:
    """A lender that answers, gone afterwards. Its `devices` share the limit.

    In a network namespace it is on the loopback of that namespace, where only its control line reaches it from here.
    """
    if not port:
        port = free_port()
    ours, theirs = socket.socketpair()
    ours.settimeout(ANSWER_DEADLINE_S)
    command = [sys.executable, "-m", "tests.limited_device", "--port", str(port), "--mib", str(mib)]
    inside = ["ip", "netns", "exec", namespace] if namespace else []
    process = subprocess.Popen(
        [*inside, *command, "--devices", str(devices), "--control", str(theirs.fileno())],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
    )
    theirs.close()
    device = LimitedDevice(port, int(mib * MIB), process, ours)
    try:
        if namespace:
            device.used_bytes()
        else:
            _wait_until_it_answers(device)
        yield device
    finally:
        device.kill()
        ours.close()


def _wait_until_it_answers(device: LimitedDevice) -> None:
    def answers() -> bool:
        assert device.process.poll() is None, "the lending process ended"
        try:
            rpc_hello("127.0.0.1", device.port, timeout_s=1)
        except RpcUnusable:
            return False
        return True

    wait_until(answers, deadline_s=START_DEADLINE_S, what="the lending process answers")


class _Pool:
    """The lender's side: one limit, counted at the engine's own allocation functions."""

    def __init__(self, limit_bytes: int) -> None:
        import llama_cpp.llama_cpp as llama

        self._library = llama._lib
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._used_bytes = 0
        self._hog_bytes = 0
        self._refusals: list[int] = []
        self._buffers: dict[int, tuple[int, int]] = {}  # by address: bytes, and how the engine frees it
        llama.llama_backend_init()
        self.device = self._bind("ggml_backend_dev_by_type", ctypes.c_void_p, ctypes.c_int)(0)
        buffer_type = self._bind("ggml_backend_cpu_buffer_type", ctypes.c_void_p)()
        size = ctypes.c_size_t
        self._free_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        allocate_type = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, size)
        tell_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(size), ctypes.POINTER(size))
        # C calls these three for as long as the process lives.
        self._tell = tell_type(self._on_tell)
        self._free = self._free_type(self._on_free)
        self._allocate = allocate_type(self._on_allocate)
        self._allocate_before = allocate_type(_replace(buffer_type, _ALLOCATE_SLOT, self._allocate))
        _replace(self.device, _GET_MEMORY_SLOT, self._tell)

    def serve(self, port: int, devices: int) -> None:
        """Lend; never returns."""
        arguments = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p)
        lend = self._bind("ggml_backend_rpc_start_server", None, *arguments)
        lend(f"127.0.0.1:{port}".encode(), None, 1, devices, (ctypes.c_void_p * devices)(*[self.device] * devices))

    def obey(self, command: dict[str, Any]) -> dict[str, Any]:
        """Do what the test says, and tell."""
        with self._lock:
            match command["do"]:
                case "take":
                    self._hog_bytes = max(0, self._limit_bytes - self._used_bytes - int(command["leave_bytes"]))
                case "give_back":
                    self._hog_bytes = 0
            return {"used_bytes": self._used_bytes, "refusals": self._refusals}

    def _on_tell(self, _: int, free: "ctypes._Pointer[Any]", total: "ctypes._Pointer[Any]") -> None:
        with self._lock:
            total[0] = self._limit_bytes
            free[0] = max(0, self._limit_bytes - self._used_bytes - self._hog_bytes)

    def _on_allocate(self, buffer_type: int, size: int) -> int | None:
        with self._lock:
            if self._used_bytes + self._hog_bytes + size > self._limit_bytes:
                self._refusals.append(size)
                return None
            self._used_bytes += size
        buffer: int | None = self._allocate_before(buffer_type, size)
        with self._lock:
            if not buffer:
                self._used_bytes -= size
                return None
            self._buffers[buffer] = (size, _replace(buffer, _FREE_SLOT, self._free))
        return buffer

    def _on_free(self, buffer: int) -> None:
        with self._lock:
            size, free_before = self._buffers.pop(buffer)
            self._used_bytes -= size
        self._free_type(free_before)(buffer)

    def _bind(self, symbol: str, result: Any, *arguments: Any) -> Any:
        return ctypes.CFUNCTYPE(result, *arguments)((symbol, self._library))


def _replace(table: int, slot: int, function: Any) -> int:
    """Put a function into a table of C; returns what was there."""
    place = ctypes.c_void_p.from_address(table + slot * _POINTER_BYTES)
    before = place.value
    place.value = ctypes.cast(function, ctypes.c_void_p).value
    assert before, "an empty slot"
    return before


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.limited_device")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--mib", type=float, required=True)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--control", type=int, default=None)
    args = parser.parse_args()
    pool = _Pool(int(args.mib * MIB))
    threading.Thread(target=pool.serve, args=(args.port, args.devices), daemon=True).start()
    if args.control is None:
        signal.pause()
    # The line closes when the test is gone, however it ended.
    with socket.socket(fileno=args.control) as control, control.makefile("rwb") as lines:
        for line in lines:
            lines.write(json.dumps(pool.obey(json.loads(line))).encode() + b"\n")
            lines.flush()
    os._exit(0)  # the server's thread cannot be stopped


if __name__ == "__main__":
    main()

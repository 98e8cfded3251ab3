"""`python -m runner rpc`: lend devices of this node over llama.cpp RPC, for one placement.

The server listens on loopback and trusts every client. So connections of other users of this machine are closed before
it sees them, and this process has nothing worth taking: no secrets in its environment, no cache directory, no core
dumps, no way to gain rights. The host's tunnel decides who may connect from elsewhere. One line on standard output says
where it listens, a further one each time what is allocated on a device changes.
"""

import argparse
import contextlib
import os
import socket
import sys
import threading
import time
from functools import partial
from pathlib import Path

import orjson

from common.network import listening_inodes
from common.sandbox.accepting import accept_users
from runner.core.layout.layout import automatic_threads
from runner.cores import computing_cores
from runner.engine.bindings.library import start_engine
from runner.engine.devices.device_cap import DeviceCap
from runner.engine.devices.devices import LOOPBACK, open_devices, serve_devices

LISTEN_ATTEMPTS = 5
LISTEN_TIMEOUT_S = 10.0
LISTEN_LOOK_S = 0.002


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this mode."""
    parser.add_argument("--device", action="append", required=True, metavar="ID", help="lend this device; repeatable")
    parser.add_argument(
        "--max-bytes",
        action="append",
        default=[],
        metavar="ID=BYTES",
        type=_limit,
        help="refuse allocations on a device beyond so many bytes; repeatable",
    )
    parser.add_argument("--placement", default="by-hand", help="placement id that the devices are lent to")
    parser.add_argument("--weights-bytes", type=int, default=0, help="of the layers to come; decides how many threads")
    parser.add_argument("--end-with-stdin", action="store_true", help="end when standard input does")


def run(args: argparse.Namespace) -> int:
    """Lend until killed. 1 if a device is not here or nothing can be listened on."""
    say = _Facts()
    if args.end_with_stdin:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    try:
        start_engine()
        here = {device.identity.id: device.pointer for device in open_devices()}
        pointers = [here[device_id] for device_id in args.device]
        limits = dict(args.max_bytes)
        caps = [
            DeviceCap(here[device_id], max_bytes=limits.get(device_id, 0), on_change=partial(say.used, index))
            for index, device_id in enumerate(args.device)
        ]
        # The host is this user, or root where this process is a user of its own.
        if not accept_users({os.getuid(), 0}):
            print("puna runner rpc: other users of this machine can connect, too; Linux 5.0 is needed", file=sys.stderr)
        threads = automatic_threads(physical_cores=computing_cores(), weights_bytes=args.weights_bytes)
        for _ in range(LISTEN_ATTEMPTS):
            port = _free_port()
            threading.Thread(target=_announce, args=(port, say), daemon=True).start()
            serve_devices(port, pointers, threads=threads)
        del caps
    except KeyError as error:
        print(f"puna runner rpc: this node has no device {error}", file=sys.stderr)
        return 1
    except (OSError, ValueError) as error:
        print(f"puna runner rpc: {error}", file=sys.stderr)
        return 1
    print("puna runner rpc: no free port on loopback", file=sys.stderr)
    return 1


class _Facts:
    """Facts that are printed on standard output. Output of the engine is redirected to the log."""

    def __init__(self) -> None:
        self._output = os.dup(1)
        os.dup2(2, 1)

    def listening(self, port: int) -> None:
        """Print the first line."""
        self._write({"address": f"{LOOPBACK}:{port}", "pid": os.getpid()})

    def used(self, device: int, used_bytes: int) -> None:
        """Bytes allocated on the device of this number, in the order of the command line."""
        self._write({"device": device, "used_bytes": used_bytes})

    def _write(self, fact: dict[str, object]) -> None:
        with contextlib.suppress(OSError):  # the parent process is gone, and our end is near
            os.write(self._output, orjson.dumps(fact) + b"\n")


def _announce(port: int, say: _Facts) -> None:
    """Say where we listen, once we do; another process may have taken the port meanwhile."""
    deadline_s = time.monotonic() + LISTEN_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if _listens(port):
            say.listening(port)
            return
        time.sleep(LISTEN_LOOK_S)


def _listens(port: int) -> bool:
    """Return True if a socket of this process listens on the port; a connection would look like a client."""
    inodes = listening_inodes(Path("/proc/self/net/tcp").read_text(), port)
    own = set()
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208  # names are what is wanted
        try:
            own.add(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115  # no path, a name like socket:[123]
        except OSError:
            continue
    return any(f"socket:[{inode}]" in own for inode in inodes)


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def _end_with_stdin() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


def _limit(text: str) -> tuple[str, int]:
    device_id, separator, count = text.rpartition("=")
    if not separator or not device_id or not count.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not ID=BYTES")
    return device_id, int(count)

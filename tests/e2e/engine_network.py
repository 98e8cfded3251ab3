"""HTTP into the network of a Docker engine that has namespaces of its own."""

import contextlib
import ctypes
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

from common.network import split_host_port

CLONE_NEWNET = 0x40000000
CHUNK_BYTES = 1 << 16


@contextlib.contextmanager
def forwarded(pid: int, address: str, path: Path) -> Iterator[Path]:
    """A Unix socket at `path` that leads to `address` as seen from the network namespace of process `pid`."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=_forward_all, args=(pid, address, listener), daemon=True)
        thread.start()
        try:
            yield path
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # ends accept
            thread.join()
            path.unlink()


def _forward_all(pid: int, address: str, listener: socket.socket) -> None:
    """Only this thread enters the namespace; a TCP socket stays in the one where it was made."""
    with Path(f"/proc/{pid}/ns/net").open("rb") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    while True:
        try:
            near, _ = listener.accept()
        except OSError:
            return
        try:
            far = socket.create_connection(split_host_port(address), timeout=60)
        except OSError:
            near.close()
            continue
        far.settimeout(None)
        threading.Thread(target=_relay, args=(near, far), daemon=True).start()


def _relay(near: socket.socket, far: socket.socket) -> None:
    """Both directions, until one of them ends."""
    with near, far:
        answers = threading.Thread(target=_copy, args=(far, near), daemon=True)
        answers.start()
        _copy(near, far)
        answers.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(CHUNK_BYTES):
            target.sendall(data)
    for end in (source, target):  # the other direction ends, too
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)

"""Lends devices of this process over llama.cpp RPC. Whoever connects may do anything in it: loopback only."""

import ctypes
from collections.abc import Sequence

from runner.engine.bindings import ggml

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

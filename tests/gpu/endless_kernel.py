"""A kernel that never ends, on the card that the calling thread uses. Source: the CUDA driver API reference."""

import ctypes

# PTX, which the driver compiles for its card, so that no toolkit is needed.
_PTX = b""".version 6.3
.target sm_75
.address_size 64
.visible .entry spin()
{
again:
    bra again;
}
\0"""
_BLOCKS, _THREADS = 8192, 1024  # more than any card runs at once, so that no other kernel finds room


class NoCuda(Exception):
    """There is no driver, or it refused."""


def launch_endless_kernel() -> None:
    """Start it on the current context of this thread; only the end of the process ends it.

    Raises:
        NoCuda: nothing was started.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise NoCuda(str(error)) from error
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _check("cuModuleLoadData", cuda.cuModuleLoadData(ctypes.byref(module), _PTX))
    _check("cuModuleGetFunction", cuda.cuModuleGetFunction(ctypes.byref(function), module, b"spin"))
    grid = (ctypes.c_uint(_BLOCKS), ctypes.c_uint(1), ctypes.c_uint(1))
    block = (ctypes.c_uint(_THREADS), ctypes.c_uint(1), ctypes.c_uint(1))
    _check("cuLaunchKernel", cuda.cuLaunchKernel(function, *grid, *block, ctypes.c_uint(0), None, None, None))


def _check(call: str, status: int) -> None:
    if status:
        raise NoCuda(f"{call}: CUresult {status}")

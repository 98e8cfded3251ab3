"""Mappings of memory files that hold states."""

import ctypes
import mmap
import os

import numpy as np

from runner.engine.contract.states import StateBytes
from runner.sealed_memory import create_memory_file, seal

_POPULATE_READ, _POPULATE_WRITE = 22, 23  # of madvise, since Linux 5.14; earlier kernels fault page by page
_FAILED = ctypes.c_void_p(-1).value
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class MemoryFile:
    """An anonymous file that is written through a mapping, then sealed.

    The mapping is made by hand: a file cannot be sealed while it is mapped for writing, and numpy keeps Python's own
    mappings open for as long as an array lives. `array` must not be used after `seal` or `close`.
    """

    def __init__(self, size_bytes: int) -> None:
        """Have its pages in memory.

        Raises:
            OSError: there is no memory for it.
        """
        self.size_bytes = size_bytes
        self.descriptor = create_memory_file()
        try:
            os.truncate(self.descriptor, size_bytes)
            address = _libc.mmap(
                None, size_bytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, self.descriptor, 0
            )
            if address == _FAILED:
                raise OSError(ctypes.get_errno(), "mmap")
        except OSError:
            os.close(self.descriptor)
            raise
        self._address: int | None = address
        # By ctypes: these calls take long and let the other threads go on.
        _libc.madvise(address, size_bytes, _POPULATE_WRITE)
        self.array: StateBytes = np.ctypeslib.as_array((ctypes.c_uint8 * size_bytes).from_address(address))

    def seal(self, used_bytes: int, trailer: bytes) -> int:
        """Keep the first bytes, append a trailer, let nothing change from here on; return the size.

        Raises:
            OSError: there is no memory for the trailer.
        """
        self._unmap()
        os.truncate(self.descriptor, used_bytes)
        if os.pwrite(self.descriptor, trailer, used_bytes) != len(trailer):
            raise OSError("short write")
        seal(self.descriptor)
        return used_bytes + len(trailer)

    def close(self) -> None:
        """Give the memory back, unless another process has the file."""
        self._unmap()
        os.close(self.descriptor)

    def _unmap(self) -> None:
        if self._address is not None:
            _libc.munmap(self._address, self.size_bytes)
            self._address = None


def map_sealed(descriptor: int) -> memoryview:
    """Return the bytes of a sealed file, read into this process's page table; the descriptor can be closed.

    Raises:
        OSError, ValueError: it cannot be mapped.
    """
    mapped = mmap.mmap(descriptor, 0, mmap.MAP_SHARED, mmap.PROT_READ)
    view = memoryview(mapped)
    _libc.madvise(np.frombuffer(view, np.uint8).ctypes.data, len(view), _POPULATE_READ)
    return view

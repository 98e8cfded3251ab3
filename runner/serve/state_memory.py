"""Mappings of memory files that hold states."""

import ctypes
import mmap
import os
from functools import cached_property

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
    """An anonymous file that is written in pieces or through a mapping, then sealed.

    A file cannot be sealed while it is mapped for writing, and numpy keeps Python's own mappings open for as long as an
    array lives, so the mapping is made by hand. `array` must not be used after `seal` or `close`.
    """

    def __init__(self, size: int, *, mapped: bool = False) -> None:
        """Create a file of `size` bytes. Its pages are allocated as they are written, or with the mapping.

        Raises:
            OSError: there is no memory for it.
        """
        self.size = size
        self.descriptor = create_memory_file()
        try:
            os.truncate(self.descriptor, size)
            if mapped:
                _ = self.array
        except OSError:
            os.close(self.descriptor)
            raise

    def __setitem__(self, place: slice, data: StateBytes) -> None:
        """Write bytes at the start of a place.

        Through the descriptor: the kernel fills a mapping with zeros first, page by page, and takes it down again,
        for which the threads that compute would wait.

        Raises:
            OSError: there is no memory for them.
        """
        if os.pwrite(self.descriptor, data.data, place.start) != data.size:
            raise OSError("short write")

    @cached_property
    def array(self) -> StateBytes:
        """Return the file as an array, all its pages in memory.

        Raises:
            OSError: it cannot be mapped.
        """
        address = _libc.mmap(None, self.size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, self.descriptor, 0)
        if address == _FAILED:
            raise OSError(ctypes.get_errno(), "mmap")
        # By ctypes: these calls take long and let the other threads go on.
        _libc.madvise(address, self.size, _POPULATE_WRITE)
        return np.ctypeslib.as_array((ctypes.c_uint8 * self.size).from_address(address))

    def seal(self, used_bytes: int, trailer: bytes) -> int:
        """Keep the first bytes, append a trailer, let nothing change from here on; return the size.

        Raises:
            OSError: there is no memory for the trailer.
        """
        self._unmap()
        os.truncate(self.descriptor, used_bytes)
        self[used_bytes:] = np.frombuffer(trailer, np.uint8)
        seal(self.descriptor)
        return used_bytes + len(trailer)

    def close(self) -> None:
        """Give the memory back, unless another process has the file."""
        self._unmap()
        os.close(self.descriptor)

    def _unmap(self) -> None:
        array: StateBytes | None = self.__dict__.pop("array", None)
        if array is not None:
            _libc.munmap(array.ctypes.data, self.size)


def map_sealed(descriptor: int) -> memoryview:
    """Return the bytes of a sealed file, read into this process's page table; the descriptor can be closed.

    Raises:
        OSError, ValueError: it cannot be mapped.
    """
    mapped = mmap.mmap(descriptor, 0, mmap.MAP_SHARED, mmap.PROT_READ)
    view = memoryview(mapped)
    _libc.madvise(np.frombuffer(view, np.uint8).ctypes.data, len(view), _POPULATE_READ)
    return view

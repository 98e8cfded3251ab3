"""Tries a layout's sizes on its devices before any weight is read: one buffer for each device and class, all at once.

The engine allocates weights first and reads them, and only then asks for cache and graph; without this a device that
is too small costs a whole load.
"""

from collections.abc import Mapping, Sequence
from ctypes import c_size_t, c_void_p

from runner.core.layout.load_log import BufferRefusal, MemoryClass
from runner.engine.bindings import ggml

# A larger buffer than the device takes in one piece is tried in pieces; fewer than this many, whatever it says.
PIECES_MAX = 1024

_largest = ggml.bind("ggml_backend_buft_get_max_size", c_size_t, c_void_p)


def try_reservation(
    device_pointers: Mapping[str, int], wanted: Mapping[str, Sequence[tuple[MemoryClass, int]]]
) -> BufferRefusal | None:
    """Allocate everything, give it back, and say what was refused; `BufferRefusal.buffer` is the device's id.

    Args:
        device_pointers: ggml device by id.
        wanted: bytes by device id and class.
    """
    held: list[int] = []
    try:
        for device_id, sizes in wanted.items():
            buffer_type = ggml.device_buffer_type(device_pointers[device_id])
            for what, size_bytes in sizes:
                if not _hold(buffer_type, size_bytes, held):
                    return BufferRefusal(buffer=device_id, size_bytes=size_bytes, what=what)
    finally:
        for buffer in held:
            ggml.free_buffer(buffer)
    return None


def _hold(buffer_type: int, size_bytes: int, held: list[int]) -> bool:
    piece_bytes = max(_largest(buffer_type), size_bytes // PIECES_MAX, 1)
    while size_bytes > 0:
        buffer = ggml.allocate_buffer(buffer_type, min(size_bytes, piece_bytes))
        if not buffer:
            return False
        held.append(buffer)
        size_bytes -= piece_bytes
    return True

"""A pipe that nothing more fits into, and that is not read."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def full_pipe() -> Iterator[int]:
    """Give its end for writing: a write waits for ever."""
    read, write = os.pipe()
    try:
        os.set_blocking(write, False)
        with suppress(BlockingIOError):
            while True:
                os.write(write, bytes(4096))
        os.set_blocking(write, True)
        yield write
    finally:
        os.close(write)
        os.close(read)

"""Memory files that nothing can change once they are sealed; host and runner pass them to each other."""

import fcntl
import os

_NAME = "puna-state"
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def create_memory_file() -> int:
    """Return the descriptor of an empty memory file that can be sealed."""
    return os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def seal(descriptor: int) -> None:
    """Let nothing change a memory file from here on.

    Raises:
        OSError: it is still mapped for writing.
    """
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)


def is_sealed(descriptor: int) -> bool:
    """Return True for a memory file that can never change again."""
    try:
        return fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS == _SEALS
    except OSError:
        return False

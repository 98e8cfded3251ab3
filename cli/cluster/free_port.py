"""A loopback port for a process that is about to start."""

import socket

from common.network import is_taken

_LOOPBACK = "127.0.0.1"


class FreePort:
    """Gives the same port again for as long as it is free.

    Between the choice and the bind somebody else may take it; then the process does not start, and its next try gets
    another port.
    """

    def __init__(self) -> None:
        """Nothing is chosen yet."""
        self._port = 0

    def address(self) -> str:
        """`host:port` that is free now."""
        if self._port == 0 or is_taken(f"{_LOOPBACK}:{self._port}"):
            with socket.socket() as probe:
                probe.bind((_LOOPBACK, 0))
                self._port = probe.getsockname()[1]
        return f"{_LOOPBACK}:{self._port}"

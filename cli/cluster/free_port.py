"""A port for a process that is about to start, on loopback unless another address is named."""

import socket

from common.network import is_taken, join_host_port

_LOOPBACK = "127.0.0.1"


class FreePort:
    """Gives the same port again for as long as it is free.

    Between the choice and the bind another process may take it; then the process does not start, and its next try
    gets another port.
    """

    def __init__(self, host: str = _LOOPBACK) -> None:
        """Nothing is chosen yet."""
        self._host = host
        self._port = 0

    def address(self) -> str:
        """`host:port` that is free now."""
        if self._port == 0 or is_taken(join_host_port(self._host, self._port)):
            with socket.socket(socket.AF_INET6 if ":" in self._host else socket.AF_INET) as probe:
                probe.bind((self._host, 0))
                self._port = probe.getsockname()[1]
        return join_host_port(self._host, self._port)

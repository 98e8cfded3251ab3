"""Resources that test runs beside each other must not both take: ports for servers with a given port, and numbers.

Runs know of one another by names of Unix sockets, which go with the process that has them.
"""

import random
import socket

# Below those that the system hands out by itself (net.ipv4.ip_local_port_range), to clients and to listeners on port 0.
_PORTS = range(20_000, 30_000)
_claimed: list[socket.socket] = []  # as long as this process lives


def free_port() -> int:
    """A TCP port of loopback that nobody listens on; neither this function nor the system gives it to anybody else."""
    for port in random.sample(_PORTS, 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            if _claim(f"port-{port}"):
                return port
    raise AssertionError("no port is free")


def free_number(kind: str, numbers: range) -> int:
    """One of these numbers that no other test of this machine has got for this kind of thing."""
    return next(number for number in numbers if _claim(f"{kind}-{number}"))


def _claim(name: str) -> bool:
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0puna-test-{name}")
    except OSError:
        claim.close()
        return False
    _claimed.append(claim)
    return True

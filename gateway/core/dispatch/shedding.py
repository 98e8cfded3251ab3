"""Load shedding of a gateway that is short of memory or connections. Pure: measurements come in.

New connections first, then every body. What is being answered is never cut. `work_limit` does it for processor time.
"""

from dataclasses import dataclass, field

from common.errors import QueueFull
from gateway.core.dispatch.work_limit import OVERLOAD_TEXT

# Shares of the memory that the process may use.
CONNECTIONS_UP_TO = 0.90
BODIES_UP_TO = 0.95
# Connections of one gateway, and of one address.
CONNECTIONS_MAX = 1000
CONNECTIONS_OF_ADDRESS_MAX = 64
# Open files that are not for clients: listeners, replicas, Redis, workers. A quarter of the rest is for clients that
# are being refused.
FILES_KEPT = 128
RETRY_AFTER_S = 2.0


def connections_max(open_files_max: int) -> int:
    """Return the connections that a process takes which may have so many files open; a negative number: any."""
    if open_files_max < 0:
        return CONNECTIONS_MAX
    return max(1, min(CONNECTIONS_MAX, (open_files_max - FILES_KEPT) * 3 // 4))


@dataclass(slots=True)
class Pressure:
    """Share of the memory that the process uses, as last measured."""

    memory_share: float = 0.0

    @property
    def takes_connections(self) -> bool:
        """False while memory is short."""
        return self.memory_share < CONNECTIONS_UP_TO

    def check_body(self) -> None:
        """Let a part of a body in.

        Raises:
            QueueFull: not now.
        """
        if self.memory_share >= BODIES_UP_TO:
            raise QueueFull(OVERLOAD_TEXT, retry_after_s=RETRY_AFTER_S)


@dataclass(slots=True)
class Connections:
    """Open connections, by address."""

    limit: int = CONNECTIONS_MAX
    total: int = 0
    by_address: dict[str, int] = field(default_factory=dict)

    def admit(self, address: str, pressure: Pressure) -> bool:
        """Count a connection in; False: close it."""
        count = self.by_address.get(address, 0)
        if self.total >= self.limit or count >= CONNECTIONS_OF_ADDRESS_MAX or not pressure.takes_connections:
            return False
        self.total += 1
        self.by_address[address] = count + 1
        return True

    def leave(self, address: str) -> None:
        """Count one out that was admitted."""
        self.total -= 1
        self.by_address[address] -= 1
        if not self.by_address[address]:
            del self.by_address[address]

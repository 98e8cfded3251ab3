"""Load shedding of an overloaded gateway, and its order. Pure: measurements come in.

Large bodies first, because each holds the event loop longest; then new connections; then every body. What is being
answered is never cut.
"""

from dataclasses import dataclass, field

from common.errors import QueueFull

# Lateness of the event loop, and its duration, before large bodies are refused.
LAG_S_MAX = 0.1
LAG_LASTS_S = 1.0
LARGE_BODY_BYTES = 64 * 1024
# Shares of the memory that the process may use.
CONNECTIONS_UP_TO = 0.90
BODIES_UP_TO = 0.95
# Connections of one gateway, and of one address.
CONNECTIONS_MAX = 1000
CONNECTIONS_OF_ADDRESS_MAX = 64
RETRY_AFTER_S = 2.0
SHED_TEXT = "the gateway has too much to do; please try again"


@dataclass(slots=True)
class Pressure:
    """Pressure on the process, as last measured."""

    memory_share: float = 0.0
    _late_since_s: float | None = None
    _now_s: float = 0.0

    def measured(self, *, now_s: float, lag_s: float, memory_share: float) -> None:
        """Note a new measurement: the lateness of the event loop, and the part of the memory that is used."""
        self._now_s = now_s
        self.memory_share = memory_share
        if lag_s <= LAG_S_MAX:
            self._late_since_s = None
        elif self._late_since_s is None:
            self._late_since_s = now_s - lag_s

    @property
    def is_late(self) -> bool:
        """True if the event loop has been late for a while."""
        return self._late_since_s is not None and self._now_s - self._late_since_s >= LAG_LASTS_S

    @property
    def takes_connections(self) -> bool:
        """False while memory is short."""
        return self.memory_share < CONNECTIONS_UP_TO

    def check_body(self, size_bytes: int) -> None:
        """Let a body of this size in; `size_bytes` may be what was announced, or what has come so far.

        Raises:
            QueueFull: not now.
        """
        if self.memory_share >= BODIES_UP_TO or (self.is_late and size_bytes > LARGE_BODY_BYTES):
            raise QueueFull(SHED_TEXT, retry_after_s=RETRY_AFTER_S)


@dataclass(slots=True)
class Connections:
    """Open connections, by address."""

    total: int = 0
    by_address: dict[str, int] = field(default_factory=dict)

    def admit(self, address: str, pressure: Pressure) -> bool:
        """Count a connection in; False: close it."""
        count = self.by_address.get(address, 0)
        if self.total >= CONNECTIONS_MAX or count >= CONNECTIONS_OF_ADDRESS_MAX or not pressure.takes_connections:
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

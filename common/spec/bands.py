"""Priority bands of requests."""

from enum import IntEnum


class Band(IntEnum):
    """Priority band; a lower number goes first."""

    HIGH = 0
    NORMAL = 1
    LOW = 2

"""Limit of a fence: schedulers store and hosts accept no number far in the future, which would lock out every leader.

Fences start from the wall clock in milliseconds and grow by one per term, so a number beyond the limit is no fence that
a scheduler has drawn. The slack covers clocks that differ.
"""

from common.clock import MS_PER_S

FENCE_AHEAD_MS_MAX = 24 * 60 * 60 * MS_PER_S


def fence_max(wall_unix_s: float) -> int:
    """Return the highest fence that can be valid at a wall-clock time."""
    return int(wall_unix_s * MS_PER_S) + FENCE_AHEAD_MS_MAX

"""Memory speed of devices under decode steps, learned from windows of replicas' steps. Pure.

What disturbs a step makes it slower, never faster, so the best that was seen is nearest to the truth, and what is
slower is doubted for long. A device that is really slower than it was shows that in every hour it is used.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import TypeGuard

MIB = 1024 * 1024
# Less may lie in a cache from step to step: then it is not memory that is timed.
DEVICE_BYTES_MIN = 256 * MIB
# A step has a fixed part: kernels are launched, threads meet. It takes a millisecond at most, so that what is read in
# five shows the speed within the 20 % that make devices equally fast. By the device's copy, which is about as fast as
# reading can be: a device that is slow for other reasons than memory is to be seen as that.
READ_S_MIN = 0.005
STEP_S_MIN = 0.02  # where no copy was timed
WINDOWS_MIN = 4  # before anything is shown: a hundred steps
HOURS_KEPT = 12 + 1  # with results; the last one still runs
RISES_FROM = 1.05  # what is shown follows only so much more, at once: half of what ranks as equal,
FALLS_FROM = 0.8  # and only so much less, once nothing better was seen in all hours that are kept
ALONE_BEFORE_S = 1.0  # so late may others be heard of


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSpeed:
    """Known speed of one device. `hours` has number and best figure of each, the newest last."""

    shown_bytes_s: float = 0.0  # 0: not yet
    windows: int = 0  # as many as are needed at first
    hours: tuple[tuple[int, float], ...] = ()

    @property
    def best_bytes_s(self) -> float:
        """Of all hours that are kept."""
        return max((best for _, best in self.hours), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadDevice:
    """A device that steps read from. `copy_bytes_s` is 0 where no copy was timed."""

    id: str
    make: str  # equal for devices that are equally fast
    copy_bytes_s: float
    bytes: int  # of weights, in each step


def learn(known: DecodeSpeed, bytes_s: float, *, hour: int, alone: bool) -> DecodeSpeed:
    """Take in a window. If others were on the device meanwhile it shows only that the device is no slower than that."""
    if not isfinite(bytes_s) or bytes_s <= 0:
        return known
    if not alone and bytes_s <= known.best_bytes_s * RISES_FROM:
        return known
    hours = known.hours
    if not hours or hours[-1][0] != hour:  # also where the clock was set back: the order is what counts
        hours = (*hours, (hour, bytes_s))[-HOURS_KEPT:]
    elif bytes_s > hours[-1][1]:
        hours = (*hours[:-1], (hour, bytes_s))
    learned = replace(known, hours=hours, windows=min(known.windows + 1, WINDOWS_MIN))
    return replace(learned, shown_bytes_s=_shown(learned))


def _shown(learned: DecodeSpeed) -> float:
    best, shown = learned.best_bytes_s, learned.shown_bytes_s
    if learned.windows < WINDOWS_MIN:
        return shown
    rises = best > shown * RISES_FROM
    falls = best < shown * FALLS_FROM and len(learned.hours) == HOURS_KEPT
    return best if not shown or rises or falls else shown


def telling(readers: Sequence[ReadDevice], bytes_s: float) -> bool:
    """Return True if steps show the speed of the devices that they read from.

    The time of a step over several devices is a sum. It shows their speed only if they all have the same: of unlike
    devices the share of each is unknown. And each has to read so much that reading is what takes the time.
    """
    if not readers or not bytes_s > 0 or len({reader.make for reader in readers}) > 1:
        return False
    if any(reader.bytes < DEVICE_BYTES_MIN for reader in readers):
        return False
    if all(reader.copy_bytes_s > 0 for reader in readers):
        return sum(reader.bytes / reader.copy_bytes_s for reader in readers) >= READ_S_MIN
    return sum(reader.bytes for reader in readers) / bytes_s >= STEP_S_MIN


class Company:
    """Last times at which several runners used a device at once."""

    def __init__(self) -> None:
        """Start without observations."""
        self._shared_at_s: dict[str, float] = {}

    def see(self, users: Mapping[str, int], now_s: float) -> None:
        """Record the number of runners that use each memory pool now."""
        for pool, count in users.items():
            if count > 1:
                self._shared_at_s[pool] = now_s

    def was_alone(self, pools: Iterable[str], *, since_s: float) -> bool:
        """Return True if no other runner has used the devices since then."""
        return all(self._shared_at_s.get(pool, float("-inf")) < since_s - ALONE_BEFORE_S for pool in pools)


def restored(shown_bytes_s: object, windows: object, hours: object) -> DecodeSpeed:
    """Restore the readable part of a stored speed."""
    if not isinstance(hours, list) or not _is_speed(shown_bytes_s) or not isinstance(windows, int):
        return DecodeSpeed()
    pairs = [pair for pair in hours if isinstance(pair, list) and len(pair) == 2 and all(map(_is_speed, pair))]
    kept = tuple((int(hour), float(bytes_s)) for hour, bytes_s in pairs)
    windows = max(0, min(windows, WINDOWS_MIN))
    return DecodeSpeed(shown_bytes_s=float(shown_bytes_s), windows=windows, hours=kept[-HOURS_KEPT:])


def _is_speed(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and isfinite(value) and value >= 0

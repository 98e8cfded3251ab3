"""Decide which running sequence is paused for a waiting one, and the order in which sequences get slots. Pure."""

from collections.abc import Iterable
from typing import NamedTuple

from common.spec.bands import Band

# A sequence counts as one band higher for each such time without a slot: it is not paused for ever.
AGE_S = 30.0
# Each pause counts as so much time without a slot, too: a sequence is not paused again and again.
PAUSE_AGE_S = 2.0
# After a request another one of its band may come for so long.
EXPECTED_S = 60.0


class Contender(NamedTuple):
    """A sequence that has a slot or wants one. A higher id came later."""

    sequence_id: int
    band: Band  # of its request
    waited_s: float = 0.0  # without a slot, all pauses together
    pauses: int = 0

    @property
    def rank(self) -> int:
        """Return the band that it counts as; a lower number goes first."""
        return rank_of(self.band, self.waited_s + self.pauses * PAUSE_AGE_S)


def rank_of(band: Band, waited_s: float) -> int:
    """Return the band that a request counts as after so long without what it wants."""
    return band if waited_s < AGE_S else max(Band.HIGH, band - int(waited_s // AGE_S))


def in_order(waiting: Iterable[Contender]) -> list[Contender]:
    """Sort waiting sequences, the next one first: by rank, then by age, so that a paused one precedes later ones."""
    return sorted(waiting, key=lambda one: (one.rank, one.sequence_id))


def victims(running: Iterable[Contender], *, band: Band | None) -> list[Contender]:
    """Return the sequences that may be paused, the first choice first: of the lowest rank the newest.

    A waiting sequence pauses for its own band only. What its age adds decides about free slots; else two sequences of
    one band would pause each other in turn.

    Args:
        running: sequences with slots.
        band: of the sequence that needs a slot; None: cells have run out, and a sequence of any rank may be paused.
    """
    lower = [one for one in running if band is None or one.rank > band]
    return sorted(lower, key=lambda one: (-one.rank, -one.sequence_id))


def open_to_bands(running: Iterable[Contender], waiting: Iterable[Contender]) -> tuple[int, ...]:
    """Count the slots that one more request of each band but the lowest would be given by pausing, highest band first.

    Waiting requests of the same band or a higher one come before it.
    """
    ranks, bands = [one.rank for one in running], [one.band for one in waiting]
    return tuple(
        max(0, sum(rank > band for rank in ranks) - sum(other <= band for other in bands))
        for band in (Band.HIGH, Band.NORMAL)
    )


class BandsSeen:
    """Highest band of which requests came lately."""

    def __init__(self) -> None:
        self._band: int = Band.LOW
        self._seen_s = 0.0

    def expected(self, bands: Iterable[int], now_s: float) -> int:
        """Take in the bands of those that run, and return the highest of which another one may come."""
        band = min(bands, default=Band.LOW)
        if band <= self._band or now_s - self._seen_s > EXPECTED_S:
            self._band, self._seen_s = band, now_s
        return self._band

"""Memory of a process on a device beside its model (context, libraries, pools), learned from loads. Pure.

A driver that lists the bytes of each process is read for as long as a replica lives, because pools grow with use. Else,
as in containers, the fall of the free bytes over a load counts, if no other process of the node came or went meanwhile.
"""

from collections.abc import Mapping
from dataclasses import dataclass

MIB = 1024 * 1024
SAMPLES_KEPT = 8
LEAST_BYTES = 64 * MIB  # less was never seen: something else has freed memory during the load
MOST_BYTES = 4096 * MIB  # more is another program's

Samples = Mapping[str, int]  # by replica, the newest last


def learn(samples: Samples, replica: str, process_bytes: int) -> Samples:
    """Return the samples with a figure of a replica; the largest one of each replica counts."""
    if not LEAST_BYTES <= process_bytes <= MOST_BYTES or process_bytes <= samples.get(replica, 0):
        return samples
    kept = {**samples, replica: process_bytes}
    return dict(list(kept.items())[-SAMPLES_KEPT:])


def learned_bytes(samples: Samples) -> int | None:
    """Return the most that a process held lately, in whole MiB; None: nothing was learned."""
    return -(-max(samples.values()) // MIB) * MIB if samples else None


def restored(samples: object) -> Samples:
    """Restore the readable part of stored samples."""
    if not isinstance(samples, dict):
        return {}
    usable = {
        str(replica): count
        for replica, count in samples.items()
        if isinstance(count, int) and LEAST_BYTES <= count <= MOST_BYTES
    }
    return dict(list(usable.items())[-SAMPLES_KEPT:])


@dataclass(frozen=True, slots=True, kw_only=True)
class CardUse:
    """A device at one moment, and the replicas on it: of each the bytes of its model there, None while it loads."""

    free_bytes: int
    replicas: Mapping[str, int | None]


class Arrivals:
    """Free bytes of one device before its newest replica came."""

    def __init__(self) -> None:
        """Start without observations."""
        self._last: CardUse | None = None
        self._replica = ""  # that is followed; empty: none
        self._free_before_bytes = 0
        self._others: frozenset[str] = frozenset()

    def see(self, use: CardUse) -> tuple[str, int] | None:
        """Return a replica whose load is over, and its bytes beside the model; None: nothing is known."""
        last, self._last = self._last, use
        if self._replica and use.replicas.keys() != self._others | {self._replica}:
            self._replica = ""  # another one came or went
        came = use.replicas.keys() - last.replicas.keys() if last is not None else frozenset()
        if last is not None and len(came) == 1 and last.replicas.keys() <= use.replicas.keys():
            (self._replica,) = came
            self._free_before_bytes, self._others = last.free_bytes, frozenset(last.replicas)
        model_bytes = use.replicas.get(self._replica)
        if not self._replica or model_bytes is None or last is None or last.replicas.get(self._replica) is None:
            return None  # one look after the load, so that the figure is newer than its end
        replica, self._replica = self._replica, ""
        return replica, self._free_before_bytes - use.free_bytes - model_bytes

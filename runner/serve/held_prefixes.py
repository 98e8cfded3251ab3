"""Prompts that a runner holds, by the names of their beginnings. Owned by the event loop."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from common.clock import MS_PER_S
from common.spec.prompt_names import NAMES_MAX
from protos import cluster_pb2
from runner.core.sequence.sequence_names import SequenceNames
from runner.engine.contract.engine import ParkedPrefix

PARKED = "parked"  # the tier of prompts in the RAM of this process


class RestorableState(NamedTuple):
    """Names of a state that is not in a slot, the predicted time to restore it, and its tier."""

    names: tuple[int, ...]
    restore_s: float
    tier: str


class HeldPrefixes:
    """Names by sequence, for as long as its prompt is held in a slot, or parked in host RAM."""

    def __init__(self) -> None:
        self._names: dict[int, SequenceNames] = {}
        self._holders: tuple[int, ...] = ()
        self._parked: tuple[ParkedPrefix, ...] = ()
        self.version = 0  # grows with every change of what is held
        self.saved: Callable[[], Sequence[RestorableState]] = lambda: ()  # the newest first

    def saved_changed(self) -> None:
        """Note that the host keeps other states."""
        self.version += 1

    def note(self, sequence_id: int, names: SequenceNames) -> None:
        """Note a request that the engine has under this number."""
        self._names[sequence_id] = names

    def see(
        self,
        holders: tuple[int, ...],
        parked: tuple[ParkedPrefix, ...],
        *,
        inside: Iterable[int],
        has_ended: bool = False,
    ) -> bool:
        """Slots hold the prompts of `holders`, host RAM those of `parked`; True: that is news.

        `inside` are the sequences that have not ended; `has_ended`: the answer of one is complete and has names.
        """
        if (holders, parked) == (self._holders, self._parked) and not has_ended:
            return False
        self._holders, self._parked = holders, parked
        known = {*holders, *(one.sequence_id for one in parked), *inside}
        self._names = {number: names for number, names in self._names.items() if number in known}
        self.version += 1
        return True

    def completed(self, status: cluster_pb2.RunnerStatus, *, known_version: int) -> cluster_pb2.RunnerStatus:
        """Return the status, with what is held if the reader knows another version. The given one is not changed."""
        if known_version == self.version:
            return status
        own = cluster_pb2.RunnerStatus()
        own.CopyFrom(status)
        own.held_prefixes.CopyFrom(self.tell())
        return own

    def tell(self) -> cluster_pb2.HeldPrefixes:
        """List every name once for the slots and once for each tier, the newest first, at most NAMES_MAX of each."""
        seen: dict[str, set[int]] = {}

        def news(names: tuple[int, ...], tier: str) -> list[int]:
            known = seen.setdefault(tier, set())
            found = [name for name in names if name not in known][: NAMES_MAX - len(known)]
            known.update(found)
            return found

        listed = cluster_pb2.HeldPrefixes()
        for number in sorted(self._holders, reverse=True):  # numbers grow
            listed.names.extend(news(self._of(number), ""))
        parked = [RestorableState(self._of(one.sequence_id), one.restore_s, PARKED) for one in self._parked]
        for state in (*parked, *self.saved()):
            if names := news(state.names, state.tier):
                listed.saved.add(names=names, restore_ms=round(state.restore_s * MS_PER_S), tier=state.tier)
        return listed

    def _of(self, number: int) -> tuple[int, ...]:
        names = self._names.get(number)
        return names.all() if names is not None else ()

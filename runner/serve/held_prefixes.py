"""Prompts that a runner holds, by the names that requests gave to their beginnings. Owned by the event loop."""

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from common.clock import MS_PER_S
from protos import cluster_pb2, runner_pb2
from runner.core.states.messages import PREFIX_NAMES_MAX

# Sent to every gateway with every change; of more than this, the newest prompts.
NAMES_MAX = 1024
SAVED_NAMES_MAX = 2048


class RestorableState(NamedTuple):
    """Names of a state that the host keeps, and the predicted time to restore it."""

    names: tuple[int, ...]
    restore_s: float


class HeldPrefixes:
    """Names by sequence, for as long as its prompt is held in a slot, or parked in host RAM."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[int, ...]] = {}
        self._holders: tuple[int, ...] = ()
        self._parked: tuple[int, ...] = ()
        self.version = 0  # grows with every change of what is held
        self.saved: Callable[[], Sequence[RestorableState]] = lambda: ()  # the newest first

    def saved_changed(self) -> None:
        """Note that the host keeps other states."""
        self.version += 1

    def note(self, sequence_id: int, request: runner_pb2.GenerateRequest) -> None:
        """Note a request that the engine has under this number."""
        self._names[sequence_id] = tuple(request.prefix_names[:PREFIX_NAMES_MAX])

    def see(self, holders: tuple[int, ...], parked: tuple[int, ...], *, inside: Iterable[int]) -> bool:
        """Slots hold the prompts of `holders`, host RAM those of `parked`; True: that is news.

        `inside` are the sequences that have not ended.
        """
        if (holders, parked) == (self._holders, self._parked):
            return False
        self._holders, self._parked = holders, parked
        known = {*holders, *parked, *inside}
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
        """Every name, each once: the newest first, and those in slots before those that are parked, then saved ones."""
        in_slots = self._of(sorted(self._holders, reverse=True), besides=frozenset())  # numbers grow
        parked = self._of(self._parked, besides=in_slots.keys())
        listed = cluster_pb2.HeldPrefixes(names=in_slots, parked_names=parked)
        known, left = set(in_slots), SAVED_NAMES_MAX
        for state in self.saved():
            if not left:
                break
            news = [name for name in state.names if name not in known][:left]
            if news:
                listed.saved.add(names=news, restore_ms=round(state.restore_s * MS_PER_S))
            known.update(news)
            left -= len(news)
        return listed

    def _of(self, sequences: Iterable[int], *, besides: AbstractSet[int]) -> dict[int, None]:
        found: dict[int, None] = {}
        for number in sequences:
            for name in self._names.get(number, ()):
                if name not in besides and len(found) + len(besides) < NAMES_MAX:
                    found[name] = None
        return found

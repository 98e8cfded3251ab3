"""Which prompts the slots hold, in the names that requests gave to their beginnings. Owned by the event loop."""

from collections.abc import Sequence

from protos import cluster_pb2, runner_pb2

# Told to every gateway with every change; of more slots than this names, the newest prompts.
NAMES_MAX = 1024
_NAMES_OF_ONE_MAX = 128


class HeldPrefixes:
    """Names by sequence, for as long as a slot holds its prompt."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[int, ...]] = {}
        self._holders: tuple[int, ...] = ()
        self.version = 0  # grows with every change of what is held

    def note(self, sequence_id: int, request: runner_pb2.GenerateRequest) -> None:
        """A request was handed to the engine under this number."""
        self._names[sequence_id] = tuple(request.prefix_names[:_NAMES_OF_ONE_MAX])

    def see(self, holders: tuple[int, ...], inside: Sequence[int]) -> bool:
        """The slots hold the prompts of these sequences, `inside` are those that have not ended; True: that is news."""
        if holders == self._holders:
            return False
        self._holders = holders
        known = {*holders, *inside}
        self._names = {number: names for number, names in self._names.items() if number in known}
        self.version += 1
        return True

    def names(self) -> list[int]:
        """Every name, each once."""
        found: dict[int, None] = {}
        for number in sorted(self._holders, reverse=True):  # numbers grow: the newest first
            for name in self._names.get(number, ()):
                if len(found) < NAMES_MAX:
                    found[name] = None
        return list(found)


class HeldPrefixesWatch:
    """What one watcher of a runner's status has been told of it."""

    def __init__(self, held: HeldPrefixes) -> None:
        self._held = held
        self._told = -1

    def completed(self, status: cluster_pb2.RunnerStatus) -> cluster_pb2.RunnerStatus:
        """The status, with what is held if that has changed. The one that was given is shared, and stays as it is."""
        if self._told == self._held.version:
            return status
        self._told = self._held.version
        own = cluster_pb2.RunnerStatus()
        own.CopyFrom(status)
        own.held_prefixes.SetInParent()
        own.held_prefixes.names.extend(self._held.names())
        return own

"""Saved states by the blocks that they begin with. Pure.

One thread changes it while another searches: each change replaces a whole tuple, so a search sees the old or the new.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from runner.core.states.chain import BLOCK_INPUTS
from runner.core.states.gate import Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class StateEntry:
    """A saved state, without its bytes."""

    key: str
    links: tuple[bytes, ...]
    inputs: int
    size_bytes: int
    tier: Tier
    saved_s: float  # to compute it again; 0: not measured
    names: tuple[int, ...] = ()  # of its beginnings; see `common.spec.prompt_names`


class Catalogue:
    """Index of saved states."""

    def __init__(self) -> None:
        self._entries: dict[str, StateEntry] = {}
        self._by_link: dict[bytes, tuple[StateEntry, ...]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def put(self, entry: StateEntry) -> None:
        """Enter or replace a state."""
        self.remove(entry.key)
        self._entries[entry.key] = entry
        for link in entry.links:
            self._by_link[link] = (*self._by_link.get(link, ()), entry)

    def remove(self, key: str) -> None:
        """Forget a state, if it is there."""
        entry = self._entries.pop(key, None)
        for link in entry.links if entry is not None else ():
            left = tuple(other for other in self._by_link[link] if other.key != key)
            if left:
                self._by_link[link] = left
            else:
                del self._by_link[link]

    def newest(self) -> list[StateEntry]:
        """List every state, the one that was entered last first."""
        return list(reversed([*self._entries.values()]))

    def clear(self) -> None:
        """Forget every state."""
        for key in list(self._entries):
            self.remove(key)

    def find(self, links: Sequence[bytes]) -> tuple[StateEntry, int] | None:
        """Return the state with the longest common beginning, the smallest of several, and the inputs in common."""
        for place in range(len(links), 0, -1):
            found = self._by_link.get(links[place - 1])
            if found:
                return min(found, key=lambda entry: entry.size_bytes), place * BLOCK_INPUTS
        return None

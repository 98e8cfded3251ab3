"""A prompt as the names of its beginnings, and what replicas hold under such names. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from common.spec.prompt_names import name_prompt

SLOTS = "slots"  # the place of what need not be restored


@dataclass(frozen=True, slots=True)
class PromptPrefixes:
    """`names[i]` is of the first `ends[i]` bytes of a prompt; shortest first."""

    names: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    size_bytes: int = 0

    def held_bytes(self, held: AbstractSet[int]) -> int:
        """Return the bytes of the prompt held under these names of beginnings."""
        return next((end for name, end in self._longest_first() if name in held), 0)

    def restores(self, kept: Mapping[int, float]) -> Iterator[tuple[int, float]]:
        """Yield the bytes of each beginning that is kept, the longest first, and the seconds to restore it."""
        for name, end in self._longest_first():
            if (restore_s := kept.get(name)) is not None:
                yield end, restore_s

    def _longest_first(self) -> Iterator[tuple[int, int]]:
        return zip(reversed(self.names), reversed(self.ends), strict=True)


NO_PREFIXES = PromptPrefixes()


@dataclass(frozen=True, slots=True)
class Holdings:
    """Names of the beginnings that a replica need not compute again."""

    slots: frozenset[int] = frozenset()
    # By tier ("parked", "ram", "disk"): the time to restore each, as the replica predicts it from measured speeds.
    tiers: Mapping[str, Mapping[int, float]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.slots) or any(self.tiers.values())

    def bytes_by_place(self, prefixes: PromptPrefixes) -> dict[str, int]:
        """Return the bytes of a prompt that the slots and each tier hold."""
        places = {SLOTS: self.slots, **{tier: kept.keys() for tier, kept in self.tiers.items()}}
        return {place: prefixes.held_bytes(held) for place, held in places.items()}

    def most_bytes(self, prefixes: PromptPrefixes) -> int:
        """Return the bytes of a prompt that are held in any place."""
        return max(self.bytes_by_place(prefixes).values())


NOTHING_HELD = Holdings()


def name_prefixes(parts: Iterable[bytes], *, salt: str) -> PromptPrefixes:
    """Name the beginnings of a prompt, the whole of it included."""
    named = name_prompt(parts, salt=salt)
    return PromptPrefixes(names=tuple(named.names), ends=tuple(named.ends), size_bytes=named.size_bytes)

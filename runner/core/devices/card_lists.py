"""Which cards the machine has, before and now. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CardChanges:
    """PCI addresses. A card with another driver, or another version of it, is `changed`."""

    came: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()
    changed: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        """Whether anything differs."""
        return bool(self.came or self.gone or self.changed)


def compare_cards(before: Mapping[str, str], now: Mapping[str, str]) -> CardChanges:
    """Lists of drivers by PCI address."""
    return CardChanges(
        came=frozenset(now.keys() - before.keys()),
        gone=frozenset(before.keys() - now.keys()),
        changed=frozenset(address for address in before.keys() & now.keys() if before[address] != now[address]),
    )

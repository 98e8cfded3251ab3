"""The rules of a grammar over bytes. Pure."""

from dataclasses import dataclass, field

# An element is a rule's number, or a set of bytes as ranges of bytes, both ends included.
ByteSet = tuple[tuple[int, int], ...]
Element = int | ByteSet
Alternative = tuple[Element, ...]


@dataclass(slots=True)
class GrammarRules:
    """Rule by number: its alternatives. The root is where an answer begins."""

    rules: list[list[Alternative]] = field(default_factory=list)
    root: int = 0


def moved(rule: list[Alternative], offset: int) -> list[Alternative]:
    """Return the rule for a grammar whose rules stand behind `offset` others."""
    return [tuple(one + offset if isinstance(one, int) else one for one in alternative) for alternative in rule]

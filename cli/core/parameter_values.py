"""Values of PARAMETER instructions as the types that options have. Pure."""

import math
from collections.abc import Iterable

from common.nearest import did_you_mean
from gateway.core.asked.option_table import PLACEMENT_RULES, SAMPLING_RULES, Kind

_TRUE, _FALSE = frozenset({"true", "1"}), frozenset({"false", "0"})


def parameter_values(parameters: Iterable[tuple[str, str]]) -> dict[str, object]:
    """By name; a list where each value is one of several. Names that nobody knows stay text: others may know them.

    Raises:
        ValueError: the text is not of the option's type.
    """
    values: dict[str, object] = {}
    for name, text in parameters:
        rule = SAMPLING_RULES.get(name) or PLACEMENT_RULES.get(name)
        kind = rule.kind if rule is not None else None
        if kind is Kind.STRINGS:
            earlier = values.get(name)
            values[name] = [*(earlier if isinstance(earlier, list) else []), text]
        else:
            values[name] = _value(name, text, kind)
    return values


def option_values(pairs: Iterable[tuple[str, str]]) -> dict[str, object]:
    """The same, from a command line: a name that nobody knows is a mistake.

    Raises:
        ValueError: there is no such option, or the text is not of its type.
    """
    found = list(pairs)
    known = {**SAMPLING_RULES, **PLACEMENT_RULES}
    for name, _ in found:
        if name not in known:
            raise ValueError(f"there is no option {name[:40]}{did_you_mean(name, known)}")
    return parameter_values(found)


def _number(name: str, word: str) -> int | float:
    """As it is written: 0 stays 0."""
    try:
        number = float(word)
        if not math.isfinite(number):
            raise ValueError(word)
    except ValueError as error:
        raise ValueError(f"parameter {name} is a number, not {word[:40]!r}") from error
    return int(word) if word.lstrip("+-").isdecimal() else number


def _value(name: str, text: str, kind: Kind | None) -> object:
    word = text.strip().lower()
    match kind:
        case Kind.INTEGER:
            try:
                return int(word)
            except ValueError as error:
                raise ValueError(f"parameter {name} is a whole number, not {text[:40]!r}") from error
        case Kind.FLOAT:
            return _number(name, word)
        case Kind.BOOLEAN:
            if word not in _TRUE | _FALSE:
                raise ValueError(f"parameter {name} is true or false, not {text[:40]!r}")
            return word in _TRUE
        case _:
            return text

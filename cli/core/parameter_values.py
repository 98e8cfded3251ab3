"""Values of PARAMETER instructions as the types that options have. Pure."""

import math
from collections.abc import Iterable

from common.nearest import did_you_mean
from common.spec.rules import OptionKind
from gateway.core.request.option_table import PLACEMENT_RULES, SAMPLING_RULES

RULES = {**SAMPLING_RULES, **PLACEMENT_RULES}
_TRUE, _FALSE = frozenset({"true", "1"}), frozenset({"false", "0"})


def parameter_values(parameters: Iterable[tuple[str, str]]) -> dict[str, object]:
    """Return the values by name; repeated parameters give a list. Unknown names stay text: the server may know them.

    Raises:
        ValueError: the text is not of the option's type.
    """
    values: dict[str, object] = {}
    for name, text in parameters:
        kind = RULES[name].kind if name in RULES else None
        if kind is OptionKind.STRINGS:
            earlier = values.get(name)
            values[name] = [*(earlier if isinstance(earlier, list) else []), text]
        else:
            values[name] = _value(name, text, kind)
    return values


def option_values(pairs: Iterable[tuple[str, str]]) -> dict[str, object]:
    """Return the values of options from a command line, where an unknown name is an error.

    Raises:
        ValueError: there is no such option, or the text is not of its type.
    """
    found = list(pairs)
    for name, _ in found:
        if name not in RULES:
            raise ValueError(f"there is no option {name[:40]}{did_you_mean(name, RULES)}")
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


def _value(name: str, text: str, kind: OptionKind | None) -> object:
    word = text.strip().lower()
    match kind:
        case OptionKind.INTEGER:
            try:
                return int(word)
            except ValueError as error:
                raise ValueError(f"parameter {name} is a whole number, not {text[:40]!r}") from error
        case OptionKind.FLOAT:
            return _number(name, word)
        case OptionKind.BOOLEAN:
            if word not in _TRUE | _FALSE:
                raise ValueError(f"parameter {name} is true or false, not {text[:40]!r}")
            return word in _TRUE
        case _:
            return text

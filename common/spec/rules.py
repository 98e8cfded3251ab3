"""Rules for values that users give: type and range, with the words of the error text. Pure."""

import math
from dataclasses import dataclass
from enum import StrEnum


class OptionKind(StrEnum):
    """Types, named as in the error text `option "x" must be of type …`."""

    INTEGER = "integer"
    FLOAT = "float32"
    BOOLEAN = "boolean"
    STRINGS = "array"
    BIAS = "object"
    CHOICE = "string"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Type and range of one value. `low_open`: the lower bound itself is excluded; `choices`: of a CHOICE."""

    kind: OptionKind
    low: float = -math.inf
    high: float = math.inf
    range_text: str = ""
    low_open: bool = False
    choices: tuple[str, ...] = ()

    def allows(self, number: float) -> bool:
        """Return True if a number is in range; not a number counts as in range, as every comparison with it fails."""
        too_low = number <= self.low if self.low_open else number < self.low
        return not (too_low or number > self.high)

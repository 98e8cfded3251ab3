"""Percentiles of measured values. Pure."""

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of the values do not exceed (nearest rank): always one of them."""
    assert values
    assert 0 < percent <= 100
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]

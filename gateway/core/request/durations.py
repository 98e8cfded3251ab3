"""`keep_alive` in all its spellings."""

import math

from common.durations import parse_go_duration_ms, whole_ms
from common.errors import InvalidRequest

FOREVER_MS = -1


def parse_keep_alive_ms(value: object) -> int | None:
    """Parse a `keep_alive` to milliseconds: a number of seconds or a Go duration; any negative value is for ever (-1).

    Raises:
        InvalidRequest: another type, or a text that is no duration.
    """
    if value is None:
        return None
    is_infinite = isinstance(value, float) and not math.isfinite(value)
    if isinstance(value, bool) or not isinstance(value, int | float | str) or is_infinite:
        raise InvalidRequest("keep_alive must be a number of seconds or a duration string", param="keep_alive")
    if isinstance(value, str):
        try:
            duration_ms = parse_go_duration_ms(value)
        except ValueError as error:
            raise InvalidRequest(f'invalid keep_alive: "{value[:64]}" is not a duration', param="keep_alive") from error
    else:
        duration_ms = round(math.copysign(whole_ms(abs(value) * 1000.0), value))
    if value != 0 and duration_ms < 0:
        return FOREVER_MS
    return duration_ms

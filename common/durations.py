"""Durations as Go writes them, which Ollama's settings and requests use."""

import math
import re

from common.clock import NS_PER_MS

_MS_PER_UNIT = {"ns": 1e-6, "us": 1e-3, "µs": 1e-3, "μs": 1e-3, "ms": 1.0, "s": 1e3, "m": 60e3, "h": 3600e3}
_PIECE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)((?:[eE][+-]?\d{1,3})?)(ns|us|µs|μs|ms|s|m|h)")
# What an int64 of nanoseconds holds, as Go's time.Duration; longer ones are clamped.
DURATION_MS_MAX = (2**63 - 1) // NS_PER_MS
_TEXT_LENGTH_MAX = 64


def parse_go_duration_ms(text: str) -> int:
    """Milliseconds of a Go duration such as "1h30m", "-1s" or "0".

    Raises:
        ValueError: not a duration.
    """
    body = text.strip()
    sign = -1 if body.startswith("-") else 1
    body = body.removeprefix("-") if sign < 0 else body.removeprefix("+")
    if body == "0":
        return 0
    total_ms, position = 0.0, 0
    while position < len(body):
        piece = _PIECE.match(body, position)
        if piece is None or len(body) > _TEXT_LENGTH_MAX:
            raise ValueError(f"{text!r} is not a duration")
        total_ms += float(piece[1] + piece[2]) * _MS_PER_UNIT[piece[3]]
        position = piece.end()
    if not body:
        raise ValueError("a duration must not be empty")
    return sign * whole_ms(total_ms)


def whole_ms(duration_ms: float) -> int:
    """Round up, so that what is more than nothing stays more than nothing; clamp to what a Go duration holds."""
    return DURATION_MS_MAX if duration_ms >= DURATION_MS_MAX else math.ceil(duration_ms)


def go_duration_text(duration_s: float) -> str:
    """Format a duration as Go does, such as "6m0s", "1.5s" or "120ms"; rounded up to milliseconds."""
    total_ms = whole_ms(duration_s * 1000)
    if total_ms < 1000:
        return f"{total_ms}ms" if total_ms else "0s"
    minutes, rest_ms = divmod(total_ms, 60_000)
    hours, minutes = divmod(minutes, 60)
    seconds = f"{rest_ms / 1000:g}s"
    if hours:
        return f"{hours}h{minutes}m{seconds}"
    return f"{minutes}m{seconds}" if minutes else seconds

"""State of a key's quota, in the headers that the official clients read."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from common.durations import go_duration_text
from gateway.core.keys.quotas import BucketLevel
from gateway.core.request.answers import Dialect


def rate_headers(levels: Mapping[str, BucketLevel], dialect: Dialect, *, wall_unix_s: float) -> dict[str, str]:
    """Build the headers of a dialect; Ollama has none."""
    headers: dict[str, str] = {}
    for name, level in levels.items():
        match dialect:
            case Dialect.OPENAI:
                headers |= _openai(name, level)
            case Dialect.ANTHROPIC:
                headers |= _anthropic(name, level, wall_unix_s)
    return headers


def _openai(name: str, level: BucketLevel) -> dict[str, str]:
    return {
        f"x-ratelimit-limit-{name}": str(level.limit),
        f"x-ratelimit-remaining-{name}": str(level.remaining),
        f"x-ratelimit-reset-{name}": go_duration_text(level.full_in_s),
    }


def _anthropic(name: str, level: BucketLevel, wall_unix_s: float) -> dict[str, str]:
    # Whole seconds, up: who comes at the time that is named is not too early.
    full_at = datetime.fromtimestamp(wall_unix_s, UTC) + timedelta(seconds=level.full_in_s + 0.999999)
    return {
        f"anthropic-ratelimit-{name}-limit": str(level.limit),
        f"anthropic-ratelimit-{name}-remaining": str(level.remaining),
        f"anthropic-ratelimit-{name}-reset": f"{full_at:%Y-%m-%dT%H:%M:%SZ}",
    }

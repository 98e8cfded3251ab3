"""What the scheduler reads from the environment."""

import re
from typing import Annotated

from pydantic import BeforeValidator, Field

from common.settings import PunaSettings
from scheduler.core.policy import Policy

UNIT_MS = {"ms": 1.0, "s": 1e3, "m": 60e3, "h": 3600e3}
DURATION = re.compile(r"-?(\d+(\.\d+)?(ms|s|m|h))+")
PIECE = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
DURATION_MS_MAX = 10 * 366 * 24 * 3600 * 1000


def parse_duration_ms(value: object) -> int:
    """Milliseconds of a number of seconds or a Go duration such as "1h30m"; negative means for ever.

    Raises:
        ValueError: neither.
    """
    if isinstance(value, int):
        return value  # a default, in milliseconds already
    text = str(value).strip()
    sign = -1 if text.startswith("-") else 1
    if DURATION.fullmatch(text):
        total = sum(float(number) * UNIT_MS[unit] for number, unit in PIECE.findall(text))
        return sign * min(round(total), DURATION_MS_MAX)
    try:
        seconds = float(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is neither a number of seconds nor a duration such as 5m") from error
    if abs(seconds) * 1000 > DURATION_MS_MAX or seconds != seconds:  # noqa: PLR0124  # NaN
        raise ValueError(f"{text!r} is out of range")
    return round(seconds * 1000)


DurationMs = Annotated[int, BeforeValidator(parse_duration_ms)]


class SchedulerSettings(PunaSettings):
    """The fields' environment names are PUNA_ + name."""

    scheduler_listen: str = "127.0.0.1:7602"
    discovery_address: str = "127.0.0.1:7601"
    redis_url: str = "redis://127.0.0.1:6379/0"
    keep_alive: DurationMs = 300_000
    load_timeout: DurationMs = 300_000  # without any progress
    context_length: int = Field(default=0, ge=0)  # 0: automatic
    num_parallel: int = Field(default=0, ge=0, le=256)  # 0: automatic
    max_queue: int = Field(default=512, ge=1)  # callers that wait for loads
    engine: str = ""

    def policy(self) -> Policy:
        """What of it the core decides with."""
        stall_s = self.load_timeout / 1000 if self.load_timeout > 0 else float("inf")
        return Policy(
            context_tokens=self.context_length,
            num_parallel=self.num_parallel,
            engine=self.engine,
            keep_alive_ms=self.keep_alive,
            load_stall_s=stall_s,
            load_waiters_max=self.max_queue,
        )

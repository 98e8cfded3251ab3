"""What the scheduler reads from the environment."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from common.clock import MS_PER_S
from common.durations import parse_go_duration_ms
from common.settings import PunaSettings
from scheduler.core.policy import Policy


def parse_duration_ms(value: object) -> int:
    """Milliseconds of a number of seconds or a Go duration such as "1h30m"; negative means for ever.

    Raises:
        ValueError: neither.
    """
    if isinstance(value, int):
        return value  # a default, in milliseconds already
    text = str(value).strip()
    try:
        return parse_go_duration_ms(text)
    except ValueError:
        pass
    try:
        return round(float(text) * MS_PER_S)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r} is neither a number of seconds nor a duration such as 5m") from error


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
    placements: str = ""  # path of a TOML file of constraints
    measure: bool = True  # False: layouts are chosen by estimates
    evict_for_speed: bool = True
    auto_kv: bool = False
    rpc_nodes_max: int = Field(default=4, ge=1)
    max_loaded_models: int = Field(default=0, ge=0)  # per node; 0: bytes alone decide

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
            loaded_models_max=self.max_loaded_models,
            measure=self.measure,
            evict_for_speed=self.evict_for_speed,
            auto_kv=self.auto_kv,
            rpc_nodes_max=self.rpc_nodes_max,
        )

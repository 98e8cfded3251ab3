"""Settings of the scheduler, read from the environment."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from common.clock import MS_PER_S
from common.durations import parse_go_duration_ms
from common.settings import PunaSettings
from common.spec.layout import FlashAttention
from scheduler.core.values.constraints import Constraints, FillPolicy
from scheduler.core.values.policy import Policy


def parse_duration_ms(value: object) -> int:
    """Parse a number of seconds or a Go duration such as "1h30m" to milliseconds; negative means for ever.

    Raises:
        ValueError: neither.
    """
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
    """Where gateways ask."""
    discovery_address: str = "127.0.0.1:7601"
    """Where the inventory is: several with commas between them, or a name with several addresses."""
    redis_url: str = "redis://127.0.0.1:6379/0"
    """Desired state and leadership; `redis+sentinel://host:26379,host:26379/name/0` names sentinels."""
    redis_any_version: bool = False
    """A Redis whose version has a known hole (CVE-2025-49844) is used also over the network."""
    keep_alive: DurationMs = Field(default="5m", validate_default=True)
    """How long an idle model stays; negative: for ever. A request may say otherwise."""
    load_timeout: DurationMs = Field(default="5m", validate_default=True)
    """A load that makes no progress for so long is given up; 0 or less: never."""
    context_length: int = Field(default=0, ge=0)
    """Context of a replica in tokens without a request for one; 0: chosen by placement."""
    num_parallel: int = Field(default=0, ge=0, le=256)
    """Slots of a replica; 0: chosen by placement."""
    max_queue: int = Field(default=512, ge=1)
    """Callers that wait for loads."""
    engine: str = ""
    """The engine of runners: `batched`, `pooled` (embeddings, chosen by itself), `reference` (the oracle of tests,
    one sequence), `fake` (timed, for tests of scale; a checkout only, as `reference`); empty: as the model needs it."""
    placements: str = ""
    """A TOML file of constraints on models, read at the start."""
    measure: bool = True
    """Layouts are counted by the engine before a model is placed; `false`: by formulas, with twice the margin."""
    evict_for_speed: bool = True
    """Idle models go before a model is split over nodes or put into host RAM; `false`: only when nothing fits
    otherwise."""
    auto_kv: bool = False
    """An automatic cache may be q8_0 before a slower layout is taken."""
    rpc_nodes_max: int = Field(default=4, ge=1)
    """Nodes that may hold one model together; 1: never more than one."""
    sched_spread: bool = False
    """Models are spread over all devices, rather than packed onto as few as will do."""
    flash_attention: FlashAttention = FlashAttention.AUTO
    """`auto`, `on` or `off`."""
    kv_cache_type: Literal["", "f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"] = ""
    """Type of the KV cache; empty: f16, or smaller where `PUNA_AUTO_KV` allows it."""
    llm_library: str = Field(default="", pattern="^[A-Za-z0-9]*$")
    """The only backend that models are loaded on, such as `CUDA` or `CPU`; empty: any."""
    max_loaded_models: int = Field(default=0, ge=0)
    """Replicas that a node may have loaded; 0: memory alone decides."""

    def default_constraints(self) -> Constraints:
        """Return the constraints of a model without any from an operator or a request."""
        return Constraints(
            backend=self.llm_library,
            policy=FillPolicy.SPREAD if self.sched_spread else None,
            flash_attention=self.flash_attention if self.flash_attention is not FlashAttention.AUTO else None,
        ).with_cache_types(self.kv_cache_type, self.kv_cache_type)

    def policy(self) -> Policy:
        """Return the part that the core decides with."""
        stall_s = self.load_timeout / 1000 if self.load_timeout > 0 else float("inf")
        return Policy(
            context_tokens=self.context_length,
            num_parallel=self.num_parallel,
            engine=self.engine,
            defaults=self.default_constraints(),
            keep_alive_ms=self.keep_alive,
            load_stall_s=stall_s,
            load_waiters_max=self.max_queue,
            loaded_models_max=self.max_loaded_models,
            measure=self.measure,
            evict_for_speed=self.evict_for_speed,
            auto_kv=self.auto_kv,
            rpc_nodes_max=self.rpc_nodes_max,
        )

"""Every number that the scheduler's decisions use."""

from dataclasses import dataclass
from enum import StrEnum

from scheduler.core.values.constraints import NO_CONSTRAINTS, Constraints
from scheduler.core.values.memory import GIB, MIB


class EvictionOrder(StrEnum):
    """Who goes first. COST is the product's; the others are what it is compared with."""

    COST = "cost"
    LEAST_RECENTLY_USED = "lru"
    FIRST_IN = "fifo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Settings of the core. Defaults are the product's."""

    # What a model is started with.
    context_tokens: int = 0  # 0: automatic
    num_parallel: int = 0  # 0: automatic
    batch_tokens: int = 512
    engine: str = ""  # empty: the runner's default
    defaults: Constraints = NO_CONSTRAINTS  # what holds for a model where nobody wishes otherwise

    # Memory. A process on a GPU holds a context of a few hundred MiB that no report contains.
    device_reserve_bytes: int = 457 * MIB
    metal_reserve_bytes: int = 512 * MIB
    host_process_reserve_bytes: int = 64 * MIB
    device_overhead_bytes: int = 0
    host_reserve_bytes_min: int = 1 * GIB
    host_reserve_fraction: float = 0.05
    # Until enough loads of a kind were seen to know how far measurement and reality differ.
    margin_bytes: int = 64 * MIB
    backoff_step: float = 0.1
    measure: bool = True  # False: layouts are chosen by estimates
    measure_over_nodes: bool = True  # a host can count with devices that other nodes lend
    measure_rounds_max: int = 16
    evict_for_speed: bool = True  # idle models go before a slower shape is taken
    auto_kv: bool = False  # an automatic cache may be quantised before a model is refused
    rpc_nodes_max: int = 4
    # Backends whose devices work on one prompt at the same time, if the copies of the graph fit.
    pipeline_backends: frozenset[str] = frozenset({"CUDA", "ROCm", "HIP", "MUSA", "Metal", "SYCL"})
    grounds_tried_max: int = 24  # per shape and set of values: what ranks lower is no better
    candidates_max: int = 256  # that a decision carries for people

    # Figures older than this are discounted, and older than the second one not used.
    figures_stale_s: float = 2.0
    figures_unusable_s: float = 5.0

    # Loads.
    load_attempts_max: int = 3  # on one node; then the next candidate
    load_nodes_max: int = 4  # a load that fails on so many nodes is the model's own fault
    crashes_max: int = 3  # of a replica within
    crash_loop_s: float = 60.0  # on one node: broken there, for
    broken_s: float = 300.0
    load_waiters_max: int = 512
    load_stall_s: float = 300.0
    loads_per_node_max: int = 2  # they share one disk
    restart_backoff_s: float = 0.5
    restart_backoff_s_max: float = 30.0
    restart_reset_s: float = 60.0  # the crash of a replica that served for so long is a first one again
    reload_cooldown_s: float = 60.0
    report_cache_max: int = 4096

    # Keeping and evicting.
    keep_alive_ms: int = 300_000
    dwell_s_min: float = 10.0
    starve_s: float = 30.0
    eviction_order: EvictionOrder = EvictionOrder.COST
    loaded_models_max: int = 0  # per node; 0: bytes alone decide
    scale_up_wait_s: float = 5.0  # a request that waits longer for a slot is one too many
    scale_up_after_s: float = 15.0  # for so long, before there is another replica
    asked_tokens_s: float = 600.0  # how long a context that was asked for counts when a larger one is loaded
    load_deadline_s: float = 600.0  # and
    load_deadline_s_per_gib: float = 120.0  # more, however much it moves
    drain_s: float = 30.0
    node_drain_s: float = 300.0  # so long sequences may go on on a node that is drained, unless it is said otherwise
    recovery_s: float = 5.0
    recovery_fraction: float = 0.75
    stop_retry_s: float = 1.0

    # Silence is a suspicion, not a fact.
    node_lost_s: float = 5.0
    device_lost_s: float = 5.0  # a device of a node that reports
    runner_asked_s: float = 1.5  # how often the runners of a node that left are asked themselves
    node_forgotten_s: float = 60.0
    discovery_young_s: float = 10.0
    start_seen_s: float = 3.0  # until an inventory must show a runner that its host has reported ready; and
    inventory_silent_s: float = 8.0  # more if none comes: by then a watch that hangs is known to be broken

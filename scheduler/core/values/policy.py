"""Policy of the core: settings of the operator, and the numbers that tests and simulations vary."""

from dataclasses import dataclass

from scheduler.core.values.constraints import NO_CONSTRAINTS, Constraints
from scheduler.core.values.memory import GIB, MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Defaults are the product's. Numbers that never vary are constants beside their use."""

    # Settings (`scheduler/settings.py`).
    context_tokens: int = 0  # 0: automatic
    num_parallel: int = 0  # 0: automatic
    engine: str = ""  # empty: the runner's default
    defaults: Constraints = NO_CONSTRAINTS  # constraints of a model without any of its own
    keep_alive_ms: int = 300_000
    load_stall_s: float = 300.0
    load_waiters_max: int = 512
    loaded_models_max: int = 0  # per node; 0: bytes alone decide
    measure: bool = True  # False: layouts are chosen by estimates
    evict_for_speed: bool = True  # idle models go before a slower shape is taken
    auto_kv: bool = False  # an automatic cache may be quantised before a model is refused
    rpc_nodes_max: int = 4

    # Memory. A process on a GPU holds a context of a few hundred MiB that no report contains.
    device_reserve_bytes: int = 457 * MIB
    host_process_reserve_bytes: int = 64 * MIB
    host_reserve_bytes_min: int = 1 * GIB
    host_reserve_fraction: float = 0.05
    margin_bytes: int = 64 * MIB  # until enough loads of a kind were seen to learn the error of measurements
    # Backends whose devices work on one prompt at the same time, if the copies of the graph fit.
    pipeline_backends: frozenset[str] = frozenset({"CUDA", "ROCm", "HIP", "MUSA", "Metal", "SYCL"})

    # Silence is a suspicion, not a fact.
    node_lost_s: float = 5.0
    runner_asked_s: float = 1.5  # how often the runners of a node that left are asked themselves

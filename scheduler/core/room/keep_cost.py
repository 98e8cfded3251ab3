"""Expected cost of an eviction: the figures of the state, put into the formula of `demand`."""

from scheduler.core.state.cluster_state import ClusterState
from scheduler.core.state.shared_files import keeping_of
from scheduler.core.values.constraints import Constraints
from scheduler.core.values.demand import loss_of
from scheduler.core.values.view import RunnerView


def loss_of_replica(state: ClusterState, runner: RunnerView, now_s: float) -> float:
    """Return the seconds of work that are likely to be needed again."""
    tracked = state.tracked.get(runner.placement_id)
    constraints = keeping_of(state, runner)
    default_ms = default_keep_alive_ms(state, constraints)
    return loss_of_model(
        state,
        constraints,
        runner.model_digest,
        now_s,
        held=held_bytes(runner),
        held_s=runner.held_prompt_s,
        kept_for_ever=(tracked.keep_alive_ms(runner, default_ms) if tracked is not None else default_ms) < 0,
    )


def loss_of_model(
    state: ClusterState,
    constraints: Constraints,
    digest: str,
    now_s: float,
    *,
    held: int,
    held_s: float = 0.0,
    kept_for_ever: bool | None = None,
) -> float:
    """Return the loss of a model that holds so many bytes. `kept_for_ever`: None: as `constraints` say."""
    if kept_for_ever is None:
        kept_for_ever = default_keep_alive_ms(state, constraints) < 0
    return loss_of(
        state.models[digest].demand,
        now_s=now_s,
        size_bytes=held,
        held_s=held_s,
        kept_for_ever=kept_for_ever,
        priority=constraints.priority,
    )


def held_bytes(runner: RunnerView) -> int:
    """Return the bytes of a replica in all, or of its load while no report says more."""
    return runner.memory.total_bytes if runner.memory is not None else runner.load_bytes_total


def default_keep_alive_ms(state: ClusterState, constraints: Constraints) -> int:
    """Return the keep_alive without a request's own: the model's setting, else the cluster's."""
    return state.policy.keep_alive_ms if constraints.keep_alive_ms is None else constraints.keep_alive_ms


def see_requests(state: ClusterState, now_s: float) -> None:
    """Count what every runner has accepted since it was seen last."""
    for _, runner in state.observed.replicas():
        tracked = state.tracked.get(runner.placement_id)
        if tracked is None or tracked.generation != runner.generation:
            continue
        news = runner.requests_total - tracked.counted_requests
        tracked.counted_requests = runner.requests_total
        if news > 0:
            model = state.models[runner.model_digest]
            model.demand = model.demand.asked(now_s)

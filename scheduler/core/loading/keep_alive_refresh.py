"""Refresh of keep_alive by callers of a replica that serves already."""

from scheduler.core.state.cluster_state import ClusterState
from scheduler.core.state.effects import SaveDesired
from scheduler.core.values.view import RunnerView


def refresh_keep_alive(
    state: ClusterState, runner: RunnerView, keep_alive_ms: int | None, *, load_only: bool, now_s: float
) -> None:
    """Record a caller that was routed to a replica or only had it loaded. `keep_alive_ms`: None: not set."""
    tracked = state.tracked.get(runner.placement_id)
    if tracked is None:
        return
    if load_only:
        tracked.renew(now_s)
    else:
        tracked.send_caller(runner, now_s)
    if keep_alive_ms is not None:
        tracked.ask(keep_alive_ms, runner)
        _write_keep_alive(state, runner, keep_alive_ms)


def _write_keep_alive(state: ClusterState, runner: RunnerView, keep_alive_ms: int) -> None:
    """Save it for the next leader. Nothing depends on it, so a store that is away is no reason to refuse."""
    record = state.desired.get(runner.placement_id)
    if record is None or state.leadership is None or record.generation != runner.generation:
        return
    newer = record.with_keep_alive(keep_alive_ms, runner.keep_alive_requests)
    if newer == record:
        return
    state.desired[runner.placement_id] = newer
    state.emit(SaveDesired(fence=state.leadership.fence, record=newer))

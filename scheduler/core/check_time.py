"""Time of the next check of the core without an event."""

import math
from collections.abc import Iterator

from scheduler.core.keeping.keeping import SCALE_UP_AFTER_S
from scheduler.core.loading.starting import load_deadline_s
from scheduler.core.lost_devices import DEVICE_LOST_S
from scheduler.core.reconcile import NODE_FORGOTTEN_S, expiry_of
from scheduler.core.state.cluster_state import ClusterState, StopState
from scheduler.core.state.load_jobs import ON_HOST, UNPLACED
from scheduler.core.values.view import SERVING_STATES

# How often a load looks again that waits for memory: replicas become evictable with time alone.
RETRY_S = 1.0


def wake_at_s(state: ClusterState, now_s: float) -> float | None:
    """Return the earliest moment after `now_s` at which time alone changes a decision."""
    moments: list[float | None] = [*state.observed.wake_at_s()]
    if state.leadership is not None:
        moments += [*_loads(state, now_s), *_stops(state), *_expiries(state)]
        moments += [since_s + NODE_FORGOTTEN_S for since_s in state.desired_unseen_since_s.values()]
        moments += [drain.over_s for drain in state.drains.values()]
        moments += [since_s + DEVICE_LOST_S for since_s in state.devices_lost_since_s.values()]
        moments += [question.until_s for question in state.questions.values()]
        moments += [since_s + SCALE_UP_AFTER_S for since_s in state.waits_since_s.values()]
    return min((moment for moment in moments if moment is not None and now_s < moment < math.inf), default=None)


def _loads(state: ClusterState, now_s: float) -> Iterator[float | None]:
    for job in state.jobs.values():
        yield job.moved_s + state.policy.load_stall_s
        if job.state in ON_HOST:
            yield load_deadline_s(job)
            yield job.attempt.resend_at_s
        if job.state in UNPLACED:
            yield job.not_before_s
            yield job.restart.until_s if job.restart is not None else None
        if job.busy_since_s is not None:
            yield now_s + RETRY_S


def _stops(state: ClusterState) -> Iterator[float | None]:
    for stop in state.stops.values():
        yield stop.retry_at_s
        if stop.state is StopState.RECOVERING:
            yield stop.recover_until_s


def _expiries(state: ClusterState) -> Iterator[float | None]:
    for node_id, runner in state.observed.replicas():
        if runner.state in SERVING_STATES and runner.placement_id not in state.stops:
            yield expiry_of(state, runner) if state.observed.is_current(node_id) else None

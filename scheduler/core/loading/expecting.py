"""Reason and remaining time of a load's wait, for its callers.

Times come from earlier loads and from the rate so far. Without either no time is given: memory of busy replicas is
free when their requests have ended, which cannot be predicted.
"""

from math import log

from scheduler.core.state.cluster_state import ClusterState
from scheduler.core.state.load_jobs import ON_HOST, UNPLACED, LoadJob, LoadState

# Before so much is in place, the start of the process says more about the rate than the disk does.
RATE_FRACTION_MIN = 0.05
# A load predicts one of another size up to this factor; beyond it, other things decide.
SIZE_FACTOR_MAX = 4.0


def waits_for(job: LoadJob) -> str:
    """Return the next condition of the load as text. Empty: only the load itself is left."""
    if job.state in ON_HOST:
        return "its files" if job.attempt.is_fetching else ""
    if job.state is LoadState.PLANNED:
        return "its start"
    if job.state is LoadState.MEASURING and job.measuring is not None:
        return "measuring"
    if job.restart is not None:
        return str(job.restart)
    return job.waits_for or "its place in the queue"


def eta_s(state: ClusterState, job: LoadJob, now_s: float) -> float | None:
    """Return the seconds until a replica can serve; None: unknown."""
    if job.state not in UNPLACED:
        return _left_s(state, job, now_s)
    own_s = usual_load_s(state, job.model_digest)
    if own_s is None:
        return None
    before_s = _before_s(state, job, now_s)
    return None if before_s is None else before_s + own_s


def usual_load_s(state: ClusterState, digest: str) -> float | None:
    """Return the seconds of the model's last load, else of one of about its size; None: none was seen."""
    own_s = state.models[digest].demand.load_s
    if own_s is not None:
        return own_s
    own_bytes = size_bytes(state, digest)
    seen = (
        (abs(log(own_bytes / one.load_bytes)), own_bytes / one.load_bytes * one.load_s)
        for one in (model.demand for model in state.models.values())
        if one.load_s is not None and one.load_bytes and own_bytes
    )
    distance, load_s = min(seen, default=(log(SIZE_FACTOR_MAX) + 1.0, 0.0))
    return load_s if distance <= log(SIZE_FACTOR_MAX) else None


def size_bytes(state: ClusterState, digest: str) -> int:
    """Return the bytes of the model's file; 0: no node has it."""
    files = (node.model(digest) for node in state.observed.nodes.values())
    return next((file.size_bytes for file in files if file is not None), 0)


def _left_s(state: ClusterState, job: LoadJob, now_s: float) -> float | None:
    """Return the remaining seconds of a load under way. The further it is, the more its own rate counts."""
    usual_s = usual_load_s(state, job.model_digest)
    spent_s, fraction = now_s - job.attempt.loading_since_s, job.progress.weights_fraction
    if (job.origin or job.draft_origin) and not job.attempt.fetched_s:  # files come first; the whole way has one rate
        usual_s, fraction = None, job.progress.fraction
    if job.state is LoadState.PLANNED:
        return usual_s
    by_rate_s = None
    if fraction >= RATE_FRACTION_MIN and not job.failed.count:  # progress of an attempt that failed is not this one's
        by_rate_s = spent_s * (1.0 - fraction) / fraction
    if usual_s is None or usual_s <= spent_s:
        return by_rate_s
    by_others_s = usual_s - spent_s
    return by_others_s if by_rate_s is None else fraction * by_rate_s + (1.0 - fraction) * by_others_s


def _before_s(state: ClusterState, job: LoadJob, now_s: float) -> float | None:
    """Return the seconds until the load itself can begin."""
    older = _older_load(state, job)
    if older is not None:
        return eta_s(state, older, now_s)
    if job.behind:
        ahead = [eta_s(state, state.jobs[number], now_s) for number in job.behind if number in state.jobs]
        known = [one for one in ahead if one is not None]
        return max(known, default=0.0) if len(known) == len(ahead) else None
    if job.state is LoadState.WAITING and job.busy_since_s is not None:
        return None
    not_before_s = job.not_before_s if job.restart is None else job.restart.until_s
    return max(0.0, not_before_s - now_s)


def _older_load(state: ClusterState, job: LoadJob) -> LoadJob | None:
    older = (one for one in state.jobs.values() if one.id < job.id and one.model_digest == job.model_digest)
    return max(older, key=lambda one: one.id, default=None)

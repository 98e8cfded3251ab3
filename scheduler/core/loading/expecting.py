"""What a load waits for, and how long it will take: for those who wait for it.

Times come from loads that were seen and from the rate so far. Where neither tells, nobody is told a time: what busy
replicas hold is free when their callers are done, which nobody knows.
"""

from math import log

from scheduler.core.books.books import Books
from scheduler.core.books.load_jobs import ON_HOST, UNPLACED, LoadJob, LoadState
from scheduler.core.values.demand import NO_DEMAND

# Before so much is in place, the start of the process says more about the rate than the disk does.
RATE_FRACTION_MIN = 0.05
# A load tells about one of another size up to this factor; beyond it, other things decide.
SIZE_FACTOR_MAX = 4.0


def waits_for(job: LoadJob) -> str:
    """What must happen before the load goes on, in words. Empty: nothing but the load itself."""
    if job.state in ON_HOST:
        return "its files" if job.is_fetching else ""
    if job.state is LoadState.PLANNED:
        return "its start"
    if job.state is LoadState.MEASURING and job.measuring is not None:
        return "measuring"
    if job.restart is not None:
        return str(job.restart)
    return job.waits_for or "its place in the queue"


def eta_s(books: Books, job: LoadJob, now_s: float) -> float | None:
    """Seconds until a replica can serve; None: nobody knows."""
    if job.state not in UNPLACED:
        return _left_s(books, job, now_s)
    own_s = usual_load_s(books, job.model_digest)
    if own_s is None:
        return None
    before_s = _before_s(books, job, now_s)
    return None if before_s is None else before_s + own_s


def usual_load_s(books: Books, digest: str) -> float | None:
    """How long the model's last load took, else one of about its size; None: none was seen."""
    own_s = books.demand.get(digest, NO_DEMAND).load_s
    if own_s is not None:
        return own_s
    own_bytes = size_bytes(books, digest)
    seen = (
        (abs(log(own_bytes / one.load_bytes)), own_bytes / one.load_bytes * one.load_s)
        for one in books.demand.values()
        if one.load_s is not None and one.load_bytes and own_bytes
    )
    distance, load_s = min(seen, default=(log(SIZE_FACTOR_MAX) + 1.0, 0.0))
    return load_s if distance <= log(SIZE_FACTOR_MAX) else None


def size_bytes(books: Books, digest: str) -> int:
    """Of the model's file; 0: no node has it."""
    files = (node.model(digest) for node in books.observed.nodes.values())
    return next((file.size_bytes for file in files if file is not None), 0)


def _left_s(books: Books, job: LoadJob, now_s: float) -> float | None:
    """Of a load that is under way. The further it is, the more its own rate counts."""
    usual_s = usual_load_s(books, job.model_digest)
    spent_s, fraction = now_s - max(job.started_s, job.fetched_s), job.progress.weights_fraction
    if job.origin is not None and not job.fetched_s:  # its files come first; the whole way has one rate
        usual_s, fraction = None, job.progress.fraction
    if job.state is LoadState.PLANNED:
        return usual_s
    by_rate_s = None
    if fraction >= RATE_FRACTION_MIN and not job.attempts:  # progress of an attempt that failed is not this one's
        by_rate_s = spent_s * (1.0 - fraction) / fraction
    if usual_s is None or usual_s <= spent_s:
        return by_rate_s
    by_others_s = usual_s - spent_s
    return by_others_s if by_rate_s is None else fraction * by_rate_s + (1.0 - fraction) * by_others_s


def _before_s(books: Books, job: LoadJob, now_s: float) -> float | None:
    """Until the load itself can begin."""
    older = _older_load(books, job)
    if older is not None:
        return eta_s(books, older, now_s)
    if job.behind:
        ahead = [eta_s(books, books.jobs[number], now_s) for number in job.behind if number in books.jobs]
        known = [one for one in ahead if one is not None]
        return max(known, default=0.0) if len(known) == len(ahead) else None
    if job.state is LoadState.WAITING and job.busy_since_s is not None:
        return None
    not_before_s = job.not_before_s if job.restart is None else job.restart.until_s
    return max(0.0, not_before_s - now_s)


def _older_load(books: Books, job: LoadJob) -> LoadJob | None:
    older = (one for one in books.jobs.values() if one.id < job.id and one.model_digest == job.model_digest)
    return max(older, key=lambda one: one.id, default=None)

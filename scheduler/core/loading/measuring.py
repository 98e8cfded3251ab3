"""Measurements: one at a time per node, booked on its devices and in its RAM while it runs, and what comes of it."""

from scheduler.core.loading.fetch_failures import is_of_headers, on_headers_failed
from scheduler.core.planning.candidates import MeasureFirst
from scheduler.core.state.cluster_state import ClusterState, Measuring
from scheduler.core.state.events import MeasureEnded
from scheduler.core.values.faults import Fault
from scheduler.core.values.memory import MemoryReport

REPORT_CACHE_MAX = 4096

# Measurements that failed, for those who ask why.
REFUSALS_MAX = 64


def book(state: ClusterState, wanted: MeasureFirst) -> None:
    """Record a measurement that begins: the node runs no other, and its bytes are promised to it."""
    state.measuring[wanted.node_id] = Measuring(key=wanted.key, layout=wanted.layout, holds=wanted.holds)


def take_outcome(state: ClusterState, event: MeasureEnded, now_s: float) -> None:
    """Take in what was counted, or why it was not."""
    running, found = state.measuring.get(event.node_id), event.found
    if running is not None and running.key == event.key:
        del state.measuring[event.node_id]
    for job in state.jobs_by_age():
        if job.measuring == event.key:
            job.measuring = None
            job.rounds += 1
            if isinstance(found, Fault):
                if is_of_headers(state, job, event.node_id, found):
                    on_headers_failed(state, job, event.node_id, found, now_s)
                else:
                    job.failed.measures[event.key] = found
    if isinstance(found, MemoryReport):
        state.refused_measures.pop(event.key, None)
        while len(state.reports) >= REPORT_CACHE_MAX:
            del state.reports[next(iter(state.reports))]
        state.reports[event.key] = found
    else:
        while len(state.refused_measures) >= REFUSALS_MAX:
            del state.refused_measures[next(iter(state.refused_measures))]
        state.refused_measures[event.key] = found

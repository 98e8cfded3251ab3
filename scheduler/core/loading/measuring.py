"""Measurements: one at a time per node, booked on its devices and in its RAM while it runs, and what comes of it."""

from scheduler.core.books.books import Books, Measuring
from scheduler.core.books.events import Measured, MeasureFailed
from scheduler.core.loading.fetch_failures import is_of_headers, on_headers_failed
from scheduler.core.planning.candidates import MeasureFirst

# Measurements that failed, for those who ask why.
REFUSALS_MAX = 64


def book(books: Books, wanted: MeasureFirst) -> None:
    """It begins: the node counts nothing else, and what the process holds is promised to it."""
    books.measuring[wanted.node_id] = Measuring(key=wanted.key, layout=wanted.layout, holds=wanted.holds)


def take_outcome(books: Books, event: Measured | MeasureFailed, now_s: float) -> None:
    """Take in what was counted, or why it was not."""
    running = books.measuring.get(event.node_id)
    if running is not None and running.key == event.key:
        del books.measuring[event.node_id]
    for job in books.jobs_by_age():
        if job.measuring == event.key:
            job.measuring = None
            job.rounds += 1
            if isinstance(event, MeasureFailed):
                if is_of_headers(books, job, event):
                    on_headers_failed(books, job, event, now_s)
                else:
                    job.measure_faults[event.key] = event.fault
    if isinstance(event, Measured):
        books.refused_measures.pop(event.key, None)
        while len(books.reports) >= books.policy.report_cache_max:
            del books.reports[next(iter(books.reports))]
        books.reports[event.key] = event.report
    else:
        while len(books.refused_measures) >= REFUSALS_MAX:
            del books.refused_measures[next(iter(books.refused_measures))]
        books.refused_measures[event.key] = event.fault

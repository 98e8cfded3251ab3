"""The core of the scheduler: one event in, its effects out. One owner, no clock, no waiting.

1. take in what happened
2. reconcile what is wanted with what is reported
3. take stops, idle replicas and loads as far as they come now
4. publish the routes if they have changed; that comes first among the effects, answers rely on it
"""

from collections.abc import Callable
from typing import assert_never

from scheduler.core import reconcile, requests, starting, stopping
from scheduler.core.answers import end_served, fail
from scheduler.core.books import Books, Leadership
from scheduler.core.check_time import wake_at_s
from scheduler.core.effects import DropLeadership, Effect, PublishRoutes
from scheduler.core.events import (
    CallerLeft,
    DesiredSaved,
    DesiredSaveFailed,
    EnsureRequested,
    Event,
    InventoryLost,
    InventorySeen,
    LeadershipGained,
    LeadershipLost,
    Measured,
    MeasureFailed,
    RunnerAnswered,
    RunnerReported,
    StartFailed,
    StopDone,
    StopFailed,
    TimePassed,
    UnloadRequested,
)
from scheduler.core.faults import STALE_FENCE, unavailable
from scheduler.core.loading import pump
from scheduler.core.observed import Observed
from scheduler.core.policy import Policy
from scheduler.core.routing_table import build_routes, is_same_table
from scheduler.core.view import SERVING_STATES, RunnerState


class SchedulerCore:
    """Owns the books. Not thread-safe: whoever holds it is its only user."""

    def __init__(self, policy: Policy, new_id: Callable[[], str]) -> None:
        """`new_id` makes placement ids."""
        self.books = Books(policy=policy, new_id=new_id, observed=Observed(policy=policy))

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Take in an event; return what is to be done about it, in order."""
        books = self.books
        books.effects = []
        books.observed.expire(now_s)
        self._take_in(event, now_s)
        reconcile.ask_runners(books, now_s)
        reconcile.reconcile(books, now_s)
        reconcile.advance_stops(books, now_s)
        if books.leadership is not None:
            starting.check_loads(books, now_s)
            end_served(books, now_s)
            reconcile.expire_idle(books, now_s)
            pump(books, now_s)
        publish = self._publish()
        return [*publish, *books.effects]

    def wake_at_s(self, now_s: float) -> float | None:
        """When, after `now_s`, `TimePassed` is to be handled, if nothing happens before."""
        return wake_at_s(self.books, now_s)

    def _take_in(self, event: Event, now_s: float) -> None:
        books = self.books
        match event:
            case InventorySeen():
                books.observed.see_inventory(event.nodes, event.uptime_s, now_s)
                reconcile.see_replicas(books, now_s)
                reconcile.follow_loads(books, now_s)
            case InventoryLost():
                books.observed.lose_inventory(now_s)
            case EnsureRequested():
                requests.ensure(books, event, now_s)
            case CallerLeft():
                requests.leave(books, event.caller_id)
            case UnloadRequested():
                requests.unload(books, event, now_s)
            case LeadershipGained():
                reconcile.gain(books, event)
                books.leadership = Leadership(fence=event.fence, leader_id=event.leader_id)
            case LeadershipLost():
                self._lose(event.why, now_s)
            case TimePassed():
                pass
            case _:
                self._take_outcome(event, now_s)

    def _take_outcome(
        self,
        event: RunnerAnswered
        | Measured
        | MeasureFailed
        | DesiredSaved
        | DesiredSaveFailed
        | RunnerReported
        | StartFailed
        | StopDone
        | StopFailed,
        now_s: float,
    ) -> None:
        books = self.books
        match event:
            case Measured() | MeasureFailed():
                self._measured(event)
            case DesiredSaved():
                starting.on_saved(books, event, now_s)
                stopping.on_saved(books, event)
            case DesiredSaveFailed():
                starting.on_save_failed(books, event, now_s)
                stopping.on_save_failed(books, event, now_s)
            case RunnerAnswered():
                books.observed.hear(event.placement_id, event.generation, now_s)
            case RunnerReported():
                self._runner_reported(event, now_s)
            case StartFailed():
                starting.on_start_failed(books, event, now_s)
            case StopDone():
                stopping.on_stop_done(books, event, now_s)
            case StopFailed():
                if event.fault.reason == STALE_FENCE:
                    books.emit(DropLeadership(high_water=starting.high_water(event.fault)))
                stopping.on_stop_failed(books, event, now_s)
            case _:
                assert_never(event)

    def _measured(self, event: Measured | MeasureFailed) -> None:
        books = self.books
        if books.measuring.get(event.node_id) == event.key:
            del books.measuring[event.node_id]
        for job in books.jobs.values():
            if job.measuring != event.key:
                continue
            job.measuring = None
            if isinstance(event, MeasureFailed):
                job.measure_faults[event.key] = event.fault
        if isinstance(event, Measured):
            while len(books.reports) >= books.policy.report_cache_max:
                del books.reports[next(iter(books.reports))]
            books.reports[event.key] = event.report

    def _runner_reported(self, event: RunnerReported, now_s: float) -> None:
        books, runner = self.books, event.runner
        if runner.state is RunnerState.ERROR:
            failed = StartFailed(
                placement_id=runner.placement_id, generation=runner.generation, fault=runner.fault or reconcile.GONE
            )
            starting.on_start_failed(books, failed, now_s)
            return
        books.observed.see_start(event.node_id, runner, now_s)
        if runner.state in SERVING_STATES:
            reconcile.see_replica(books, runner, now_s)
        job = books.job_of(runner.placement_id, runner.generation)
        if job is not None:
            starting.take_report(books, job, runner, now_s)

    def _lose(self, why: str, now_s: float) -> None:
        """Command nothing from here on. What runs goes on; the next leader finds everything in the store."""
        books = self.books
        books.leadership = None
        books.no_leader_why = why
        for job in books.jobs_by_age():
            fail(books, job, unavailable(why), now_s)
        books.stops.clear()
        books.measuring.clear()
        books.desired.clear()
        books.desired_unseen_since_s.clear()

    def _publish(self) -> list[Effect]:
        books = self.books
        replicas = list(books.observed.replicas())
        routes = build_routes(
            tuple(books.observed.nodes.values()),
            replicas,
            hidden=books.stops.keys(),
            expiries={runner.placement_id: reconcile.expiry_of(books, runner) for _, runner in replicas},
        )
        if not books.observed.was_seen or (books.routes_version and is_same_table(books.routes, routes)):
            return []
        books.routes = routes
        books.routes_version += 1
        return [PublishRoutes(version=books.routes_version, routes=routes)]

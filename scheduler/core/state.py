"""The core of the scheduler: one event in, its effects out. One owner, no clock, no waiting.

1. take in what happened
2. reconcile what is wanted with what is reported
3. take stops, idle replicas and loads as far as they come now
4. publish the routes if they have changed; that comes first among the effects, answers rely on it
"""

from collections.abc import Callable, Mapping
from typing import assert_never

from scheduler.core import draining, explaining, reconcile
from scheduler.core.books import aliases, model_constraints
from scheduler.core.books.books import Books, Leadership
from scheduler.core.books.effects import DropLeadership, Effect, PublishRoutes
from scheduler.core.books.events import (
    AliasesRead,
    AliasPut,
    AliasSaved,
    AliasSaveFailed,
    CallerLeft,
    ConstraintsAsked,
    ConstraintsPut,
    ConstraintsSaved,
    ConstraintsSaveFailed,
    CrashesBlamed,
    DesiredSaved,
    DesiredSaveFailed,
    DeviceClearAsked,
    DrainAsked,
    DrainSaved,
    DrainSaveFailed,
    EnsureRequested,
    Event,
    ExplainAsked,
    InventoryLost,
    InventorySeen,
    LeadershipGained,
    LeadershipLost,
    LendFailed,
    Measured,
    MeasureFailed,
    QueuesReported,
    RunnerAnswered,
    RunnerReported,
    StartFailed,
    StopDone,
    StopFailed,
    TimePassed,
    UnloadRequested,
)
from scheduler.core.books.observed import Observed
from scheduler.core.check_time import wake_at_s
from scheduler.core.device_clearing import clear_device
from scheduler.core.keeping import keeping, moving, new_projectors
from scheduler.core.loading import requests, starting
from scheduler.core.loading.answers import end_served, fail
from scheduler.core.loading.crashes import blame_request
from scheduler.core.loading.loading import pump
from scheduler.core.loading.measuring import take_outcome
from scheduler.core.lost_devices import leave_lost, see_lost
from scheduler.core.room.keep_cost import see_requests
from scheduler.core.stopping import stopping
from scheduler.core.values.constraints import Constraints
from scheduler.core.values.faults import STALE_FENCE, unavailable
from scheduler.core.values.policy import Policy
from scheduler.core.values.routing_table import KnownTable, build_routes, is_same_table
from scheduler.core.values.view import SERVING_STATES, RunnerState

# What comes many times a second and changes nothing about how many replicas there should be.
MESSAGES = (RunnerReported, RunnerAnswered, CallerLeft, ExplainAsked, ConstraintsAsked)
# What may end the wait of somebody who asks why.
NEWS = (Measured, MeasureFailed, InventorySeen, LeadershipLost, TimePassed)
NOTHING_SET: Mapping[str, Constraints] = {}


class SchedulerCore:
    """Owns the books. Not thread-safe: whoever holds it is its only user."""

    def __init__(
        self, policy: Policy, new_id: Callable[[], str], file_constraints: Mapping[str, Constraints] = NOTHING_SET
    ) -> None:
        """`new_id` makes placement ids; `file_constraints` are the operator's, by model name with tag."""
        self.books = Books(
            policy=policy, new_id=new_id, observed=Observed(policy=policy), file_constraints=file_constraints
        )
        self._table = KnownTable()

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Take in an event; return what is to be done about it, in order."""
        books = self.books
        books.effects = []
        books.observed.expire(now_s)
        self._take_in(event, now_s)
        reconcile.ask_runners(books, now_s)
        reconcile.reconcile(books, now_s)
        if isinstance(event, InventorySeen):
            reconcile.forget_gone(books)
        reconcile.advance_stops(books, now_s)
        if books.leadership is not None:
            starting.check_loads(books, now_s)
            leave_lost(books, now_s)
            draining.advance_drains(books, now_s)
            end_served(books, now_s)
            reconcile.expire_idle(books, now_s)
            if not isinstance(event, MESSAGES):
                keeping.follow_queues(books, now_s)
                keeping.keep_replicas(books, now_s)
                moving.move_misplaced(books, now_s)
                new_projectors.follow_projectors(books, now_s)
            requests.drop_deserted(books, now_s)
            pump(books, now_s)
        if isinstance(event, NEWS):
            explaining.answer_questions(books, now_s)
        publish = self._publish()
        return [*publish, *books.effects]

    def wake_at_s(self, now_s: float) -> float | None:
        """When, after `now_s`, `TimePassed` is to be handled, if nothing happens before."""
        return wake_at_s(self.books, now_s)

    def _take_in(self, event: Event, now_s: float) -> None:
        books = self.books
        match event:
            case InventorySeen():
                books.observed.see_inventory(event.nodes, event.uptime_s, now_s, silent=event.silent)
                reconcile.see_replicas(books, now_s)
                see_requests(books, now_s)
                reconcile.follow_loads(books, now_s)
                see_lost(books, now_s)
            case InventoryLost():
                books.observed.lose_inventory(now_s)
            case LeadershipGained() | LeadershipLost():
                self._take_leadership(event, now_s)
            case TimePassed():
                pass
            case EnsureRequested() | UnloadRequested() | CallerLeft() | ExplainAsked() | DeviceClearAsked():
                self._take_call(event, now_s)
            case ConstraintsAsked() | ConstraintsPut() | ConstraintsSaved() | ConstraintsSaveFailed():
                self._take_constraints(event)
            case DrainAsked() | DrainSaved() | DrainSaveFailed():
                draining.take_in(books, event, now_s)
            case AliasPut() | AliasSaved() | AliasSaveFailed() | AliasesRead():
                aliases.take_in(books, event)
            case QueuesReported() | CrashesBlamed():
                self._take_report(event, now_s)
            case _:
                self._take_outcome(event, now_s)

    def _take_leadership(self, event: LeadershipGained | LeadershipLost, now_s: float) -> None:
        match event:
            case LeadershipGained():
                reconcile.gain(self.books, event, now_s)
                self.books.leadership = Leadership(fence=event.fence, leader_id=event.leader_id)
            case LeadershipLost():
                self._lose(event.why, now_s)

    def _take_call(
        self, event: EnsureRequested | UnloadRequested | CallerLeft | ExplainAsked | DeviceClearAsked, now_s: float
    ) -> None:
        match event:
            case EnsureRequested():
                requests.ensure(self.books, event, now_s)
            case UnloadRequested():
                requests.unload(self.books, event, now_s)
            case CallerLeft():
                requests.leave(self.books, event.caller_id)
            case ExplainAsked():
                explaining.explain(self.books, event, now_s)
            case DeviceClearAsked():
                clear_device(self.books, event)

    def _take_constraints(
        self, event: ConstraintsAsked | ConstraintsPut | ConstraintsSaved | ConstraintsSaveFailed
    ) -> None:
        match event:
            case ConstraintsAsked():
                model_constraints.tell(self.books, event)
            case ConstraintsPut():
                model_constraints.put(self.books, event)
            case ConstraintsSaved():
                model_constraints.on_saved(self.books, event)
            case ConstraintsSaveFailed():
                model_constraints.on_save_failed(self.books, event)

    def _take_report(self, event: QueuesReported | CrashesBlamed, now_s: float) -> None:
        match event:
            case QueuesReported():
                keeping.see_queues(self.books, event.gateway_id, event.waits_s, now_s)
            case CrashesBlamed():
                blame_request(self.books, event)

    def _take_outcome(
        self,
        event: RunnerAnswered
        | Measured
        | MeasureFailed
        | DesiredSaved
        | DesiredSaveFailed
        | RunnerReported
        | StartFailed
        | LendFailed
        | StopDone
        | StopFailed,
        now_s: float,
    ) -> None:
        books = self.books
        match event:
            case Measured() | MeasureFailed():
                take_outcome(books, event, now_s)
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
            case StartFailed() | LendFailed():
                starting.on_not_started(books, event, now_s)
            case StopDone():
                stopping.on_stop_done(books, event, now_s)
            case StopFailed():
                if event.fault.reason == STALE_FENCE:
                    books.emit(DropLeadership(high_water=starting.high_water(event.fault)))
                stopping.on_stop_failed(books, event, now_s)
            case _:
                assert_never(event)

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
        books.constraints.clear()
        books.drains.clear()
        books.pending_aliases.clear()
        books.queue_waits.clear()
        books.waits_since_s.clear()
        books.desired_unseen_since_s.clear()
        books.lost_since_s.clear()

    def _publish(self) -> list[Effect]:
        books = self.books
        replicas = list(books.observed.replicas())
        routes = build_routes(
            books.observed.nodes,
            replicas,
            hidden=books.stops.keys(),
            expiries={runner.placement_id: reconcile.expiry_of(books, runner) for _, runner in replicas},
            known=self._table,
        )
        named = None if books.aliases is None else tuple(alias for _, alias in sorted(books.aliases.items()))
        is_known = books.routes_version and named == books.routes_aliases and is_same_table(books.routes, routes)
        if not books.observed.was_seen or is_known:
            return []
        books.routes, books.routes_aliases = routes, named
        books.routes_version += 1
        return [PublishRoutes(version=books.routes_version, routes=routes, aliases=named)]

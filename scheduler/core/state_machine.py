"""The core of the scheduler: one event in, its effects out. One owner, no clock, no waiting.

1. take in what happened
2. reconcile what is wanted with what is reported
3. take stops, idle replicas and loads as far as they come now
4. publish the routes if they have changed; that comes first among the effects, answers rely on it

Without an event the core looks again at the time of its next check.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import assert_never

from scheduler.core import draining, explaining, reconcile
from scheduler.core.keeping import keeping
from scheduler.core.keeping.keeping import SCALE_UP_AFTER_S
from scheduler.core.keeping.moving import replace_outdated
from scheduler.core.loading import requests, starting
from scheduler.core.loading.answers import end_served, fail
from scheduler.core.loading.crashes import blame_request
from scheduler.core.loading.loading import pump, take_outcome
from scheduler.core.loading.starting import load_deadline_s
from scheduler.core.lost_devices import DEVICE_LOST_S, clear_device, leave_lost, see_lost
from scheduler.core.reconcile import NODE_FORGOTTEN_S, expiry_of
from scheduler.core.room.keep_cost import see_requests
from scheduler.core.state import aliases, model_constraints
from scheduler.core.state.cluster_state import ClusterState, LeaderTerm, StopState
from scheduler.core.state.effects import (
    CheckLeadership,
    DropLeadership,
    Effect,
    PublishRoutes,
    Save,
    SaveAlias,
    SaveConstraints,
    SaveDesired,
    SaveDrain,
)
from scheduler.core.state.events import (
    AliasesRead,
    AliasPut,
    Call,
    CallerLeft,
    Command,
    ConstraintsAsked,
    ConstraintsPut,
    CrashesBlamed,
    DeviceClearAsked,
    DrainAsked,
    EnsureRequested,
    Event,
    ExplainAsked,
    InventoryLost,
    InventorySeen,
    LeadershipGained,
    LeadershipLost,
    MeasureEnded,
    Outcome,
    QueuesReported,
    RunnerAnswered,
    RunnerReported,
    SaveEnded,
    StartFailed,
    StopEnded,
    TimePassed,
    UnloadRequested,
)
from scheduler.core.state.load_jobs import ON_HOST, UNPLACED
from scheduler.core.state.observed import Observed
from scheduler.core.stopping import stopping
from scheduler.core.values.constraints import Constraints
from scheduler.core.values.faults import STALE_FENCE, Fault
from scheduler.core.values.policy import Policy
from scheduler.core.values.routing_table import KnownTable, build_routes, is_same_table
from scheduler.core.values.view import SERVING_STATES, RunnerState

# How often a load looks again that waits for memory: replicas become evictable with time alone.
RETRY_S = 1.0
# Frequent events that do not change the wanted number of replicas.
MESSAGES = (RunnerReported, RunnerAnswered, CallerLeft, ExplainAsked, ConstraintsAsked)
# Events that may end the wait of an explanation.
NEWS = (MeasureEnded, InventorySeen, LeadershipLost, TimePassed)
NOTHING_SET: Mapping[str, Constraints] = {}


class SchedulerCore:
    """Event handler and sole owner of the cluster state. Not thread-safe: one loop calls it."""

    def __init__(
        self, policy: Policy, new_id: Callable[[], str], file_constraints: Mapping[str, Constraints] = NOTHING_SET
    ) -> None:
        """`new_id` makes placement ids; `file_constraints` are the operator's, by model name with tag."""
        self.state = ClusterState(
            policy=policy, new_id=new_id, observed=Observed(policy=policy), file_constraints=file_constraints
        )
        self._table = KnownTable()

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Take in an event; return what is to be done about it, in order."""
        state = self.state
        state.effects = []
        state.observed.expire(now_s)
        self._take_in(event, now_s)
        reconcile.ask_runners(state, now_s)
        reconcile.reconcile(state, now_s)
        if isinstance(event, InventorySeen):
            reconcile.forget_gone(state)
        reconcile.advance_stops(state, now_s)
        if state.leadership is not None:
            starting.check_loads(state, now_s)
            leave_lost(state, now_s)
            draining.advance_drains(state, now_s)
            end_served(state, now_s)
            reconcile.expire_idle(state, now_s)
            if not isinstance(event, MESSAGES):
                keeping.follow_queues(state, now_s)
                keeping.keep_replicas(state, now_s)
                replace_outdated(state, now_s)
            requests.drop_deserted(state, now_s)
            pump(state, now_s)
        if isinstance(event, NEWS):
            explaining.answer_questions(state, now_s)
        publish = self._publish()
        return [*publish, *state.effects]

    def wake_at_s(self, now_s: float) -> float | None:
        """Return the next moment after `now_s` for `TimePassed` without any event before, or None."""
        return wake_at_s(self.state, now_s)

    def _take_in(self, event: Event, now_s: float) -> None:
        state = self.state
        if isinstance(event, Call):
            self._take_call(event, now_s)
            return
        if isinstance(event, Command):
            self._take_command(event)
            return
        match event:
            case InventorySeen():
                state.observed.see_inventory(
                    event.nodes, event.uptime_s, now_s, silent=event.silent, removed=event.removed
                )
                reconcile.see_replicas(state, now_s)
                see_requests(state, now_s)
                reconcile.follow_loads(state, now_s)
                see_lost(state, now_s)
            case InventoryLost():
                state.observed.lose_inventory(now_s)
            case LeadershipGained():
                reconcile.gain(state, event, now_s)
                state.leadership = LeaderTerm(fence=event.fence, leader_id=event.leader_id)
            case LeadershipLost():
                self._lose(event.fault, now_s)
            case TimePassed():
                pass
            case _:
                self._take_outcome(event, now_s)

    def _take_call(self, event: Call, now_s: float) -> None:
        match event:
            case EnsureRequested():
                requests.ensure(self.state, event, now_s)
            case UnloadRequested():
                requests.unload(self.state, event, now_s)
            case CallerLeft():
                requests.leave(self.state, event.caller_id)
            case ExplainAsked():
                explaining.explain(self.state, event, now_s)
            case QueuesReported():
                keeping.see_queues(self.state, event.gateway_id, event.waits_s, now_s)
            case CrashesBlamed():
                blame_request(self.state, event)

    def _take_command(self, event: Command) -> None:
        state, term = self.state, self.state.leadership
        if term is None:
            state.refuse(event.caller_id, state.no_leader)
            return
        match event:
            case ConstraintsAsked():
                model_constraints.tell(state, event)
            case ConstraintsPut():
                model_constraints.put(state, event, term)
            case DrainAsked():
                draining.ask(state, event, term)
            case AliasPut():
                aliases.put(state, event, term)
            case DeviceClearAsked():
                clear_device(state, event, term)

    def _take_outcome(self, event: Outcome, now_s: float) -> None:
        state = self.state
        match event:
            case MeasureEnded():
                take_outcome(state, event, now_s)
            case SaveEnded():
                if event.fault is None:
                    self._take_saved(event.save, now_s)
                else:
                    self._take_not_saved(event.save, event.fault, now_s)
            case AliasesRead():
                aliases.read(state, event)
            case RunnerAnswered():
                state.observed.hear(event.placement_id, event.generation, now_s)
            case RunnerReported():
                self._runner_reported(event, now_s)
            case StartFailed():
                job = state.job_of(event.placement_id, event.generation)
                starting.on_start_failed(state, job, event.fault, now_s)
            case StopEnded():
                if event.fault is not None and event.fault.reason == STALE_FENCE:
                    state.emit(DropLeadership(high_water=event.fault.high_water))
                stopping.on_stop_ended(state, event, now_s)
            case _:
                assert_never(event)

    def _take_saved(self, save: Save, now_s: float) -> None:
        match save:
            case SaveDesired():
                starting.on_saved(self.state, save.record, now_s)
                stopping.on_saved(self.state, save.record)
            case SaveConstraints():
                model_constraints.on_saved(self.state, save)
            case SaveDrain():
                draining.on_saved(self.state, save, now_s)
            case SaveAlias():
                aliases.on_saved(self.state, save)

    def _take_not_saved(self, save: Save, fault: Fault, now_s: float) -> None:
        """Undo what waits for a save, and refuse its caller."""
        if fault.reason == STALE_FENCE:
            self.state.emit(CheckLeadership())
        match save:
            case SaveDesired():
                starting.on_save_failed(self.state, save.record, fault, now_s)
                stopping.on_save_failed(self.state, save.record, now_s)
            case SaveConstraints() | SaveDrain():
                self.state.refuse(save.caller_id, fault)
            case SaveAlias():
                aliases.on_save_failed(self.state, save, fault)

    def _runner_reported(self, event: RunnerReported, now_s: float) -> None:
        state, runner = self.state, event.runner
        job = state.job_of(runner.placement_id, runner.generation)
        if runner.state is not RunnerState.ERROR:
            state.observed.see_start(event.node_id, runner, now_s)
        if runner.state in SERVING_STATES:
            reconcile.see_replica(state, runner, now_s)
        if job is not None:
            starting.take_report(state, job, runner, now_s)

    def _lose(self, fault: Fault, now_s: float) -> None:
        """Command nothing from here on. What runs goes on; the next leader finds everything in the store."""
        state = self.state
        state.leadership = None
        state.no_leader = fault
        for job in state.jobs_by_age():
            fail(state, job, fault, now_s)
        state.stops.clear()
        state.measuring.clear()
        state.desired.clear()
        state.constraints.clear()
        state.drains.clear()
        state.pending_aliases.clear()
        state.queue_waits.clear()
        state.waits_since_s.clear()
        state.desired_unseen_since_s.clear()
        state.lost_since_s.clear()

    def _publish(self) -> list[Effect]:
        state = self.state
        replicas = list(state.observed.replicas())
        routes = build_routes(
            state.observed.nodes,
            replicas,
            hidden=state.stops.keys(),
            expiries={runner.placement_id: reconcile.expiry_of(state, runner) for _, runner in replicas},
            known=self._table,
        )
        named = None if state.aliases is None else tuple(alias for _, alias in sorted(state.aliases.items()))
        fence = state.leadership.fence if state.leadership is not None else 0
        about = named, fence
        is_same = about == (state.routes_aliases, state.routes_fence) and is_same_table(state.routes, routes)
        is_known = state.routes_version and is_same
        if not state.observed.was_seen or is_known:
            return []
        state.routes, state.routes_aliases, state.routes_fence = routes, named, fence
        state.routes_version += 1
        return [PublishRoutes(version=state.routes_version, routes=routes, aliases=named, fence=fence)]


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

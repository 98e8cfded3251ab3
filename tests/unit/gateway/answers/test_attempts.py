"""Whom the crash of a runner is blamed on, and how often a request may try again."""

from typing import Any

import pytest

from common.errors import (
    DeviceLost,
    ModelUnavailable,
    PermissionDenied,
    PunaError,
    QueueFull,
    RequestQuarantined,
    RunnerLost,
    ShuttingDown,
    Unauthenticated,
)
from gateway.answers.attempts import LOST_MAX, REFUSED_MAX, SAME_CRASH_S, Attempts
from gateway.answers.record import RequestRecord
from gateway.core.dispatch.resume import RETRY_RESERVE, Suspicion
from gateway.core.request.answers import Dialect
from gateway.replicas.runner_calls import RunnerSilent

CRASH = RunnerLost("the runner ended")


class Replica:
    """As much of a connection as blame looks at."""

    suspect: Suspicion | None = None
    is_draining = False
    suspect_crashed_s: float | None = None

    class info:  # noqa: N801  # stands for a value
        key = "p/1/i"
        node_id = "n"


class Pool:
    """A clock."""

    time_s = 100.0

    def now_s(self) -> float:
        return self.time_s

    def mark_lost(self, replica: Replica) -> None: ...

    def mark_full(self, replica: Replica) -> None: ...


def on(pool: Pool) -> Attempts:
    some: Any = pool
    return Attempts(pool=some, record=RequestRecord(dialect=Dialect.OPENAI, route=""), may_resume=True, delivered=True)


def on_probation(attempts: Attempts, replica: Replica) -> Replica:
    replica.suspect = attempts.suspicion
    attempts.suspicion.is_computed = True
    return replica


def sees_crash(attempts: Attempts, replica: Replica) -> None:
    some: Any = replica
    attempts.retry_or_raise(CRASH, some)


@pytest.mark.parametrize("late_s", [0.0, SAME_CRASH_S / 2])
def test_a_neighbour_is_not_blamed_for_the_crash_of_a_suspect_however_late_it_hears_of_it(late_s: float) -> None:
    pool = Pool()
    first, second = Replica(), Replica()
    poison, neighbour = on(pool), on(pool)
    sees_crash(poison, first)
    sees_crash(neighbour, first)
    assert (poison.suspicion.crashes, neighbour.suspicion.crashes) == (1, 1)  # nobody knows yet who it was
    on_probation(poison, second)
    with pytest.raises(RequestQuarantined):
        sees_crash(poison, second)
    second.suspect = None  # the suspect has gone
    pool.time_s += late_s
    neighbour.answer_tokens = neighbour.suspicion.harmless_from  # past its probation: it may run beside others
    sees_crash(neighbour, second)
    assert neighbour.suspicion.crashes == 1
    assert neighbour.resumes == 2


def test_another_replica_is_another_crash() -> None:
    request = on(Pool())
    sees_crash(request, Replica())
    with pytest.raises(RequestQuarantined):
        sees_crash(request, on_probation(request, Replica()))


def test_a_suspect_that_waits_for_its_probation_is_not_blamed_and_excuses_no_other_request() -> None:
    pool, replica = Pool(), Replica()
    waiting, other = on(pool), on(pool)
    sees_crash(waiting, Replica())
    replica.suspect = waiting.suspicion
    sees_crash(waiting, replica)
    sees_crash(other, replica)
    assert (waiting.suspicion.crashes, other.suspicion.crashes) == (1, 1)


def test_a_crash_beside_what_may_be_a_suspect_of_another_gateway_ends_no_request() -> None:
    request = on(Pool())
    sees_crash(request, Replica())
    sees_crash(request, Replica())  # past its probation
    assert request.suspicion.is_suspect
    with pytest.raises(RequestQuarantined):
        sees_crash(request, Replica())


def losses_survived(attempts: Attempts, error: PunaError, most: int = 50) -> int:
    """After how many failures of one kind, each at a replica of its own, the client hears of it."""
    for count in range(most):
        replica: Any = Replica()
        try:
            attempts.retry_or_raise(error, replica)
        except PunaError:
            return count
    return most


def test_an_answer_that_has_begun_changes_its_replica_five_times() -> None:
    attempts = on(Pool())
    assert losses_survived(attempts, DeviceLost("gone")) == 5
    assert attempts.resumes == attempts.record.resumes == 5


def test_drains_do_not_count_as_losses_but_have_a_bound() -> None:
    attempts = on(Pool())
    assert losses_survived(attempts, ShuttingDown("drains")) == REFUSED_MAX - 1
    assert (attempts.lost, attempts.suspicion.crashes) == (0, 0)


def test_who_must_not_resume_hears_of_the_first_loss() -> None:
    attempts = on(Pool())
    attempts.may_resume = False
    assert losses_survived(attempts, DeviceLost("gone")) == 0


def test_before_the_first_event_three_replicas_are_tried_and_each_retry_is_paid() -> None:
    attempts = on(Pool())
    attempts.delivered = False
    assert losses_survived(attempts, DeviceLost("gone")) == LOST_MAX - 1
    assert attempts.budget.left == RETRY_RESERVE - (LOST_MAX - 1)
    poor = on(Pool())
    poor.delivered, poor.budget.left = False, 0.5
    assert losses_survived(poor, DeviceLost("gone")) == 0


def test_a_refusal_of_a_full_replica_costs_nothing_and_has_a_bound() -> None:
    attempts = on(Pool())
    assert losses_survived(attempts, QueueFull("full", retry_after_s=1.0)) == REFUSED_MAX - 1
    assert (attempts.lost, attempts.budget.left, attempts.avoided) == (0, RETRY_RESERVE, set())


@pytest.mark.parametrize(
    "error",
    [DeviceLost("gone"), RunnerLost("failed to connect to all addresses"), RunnerSilent("silent")],
    ids=lambda error: type(error).__name__,
)
def test_nobody_is_blamed_where_nothing_was_computed_or_something_else_is_the_reason(error: PunaError) -> None:
    attempts = on(Pool())
    losses_survived(attempts, error, 3)
    assert (attempts.lost, attempts.suspicion.crashes) == (3, 0)


@pytest.mark.parametrize(
    "error",
    [
        ModelUnavailable(
            "service unreachable: failed to connect to all addresses; … Hostname Verification Check failed."
        ),
        Unauthenticated("the certificate of gateway expired after this connection was opened"),
        PermissionDenied("gateway may not call /puna.v1.Runner/Generate"),
    ],
)
def test_runners_that_do_not_let_the_gateway_in_are_unavailable_and_no_fault_of_key_or_request(
    error: PunaError,
) -> None:
    attempts = on(Pool())
    attempts.delivered = False
    some: Any = Replica()
    for _ in range(LOST_MAX - 1):
        attempts.retry_or_raise(error, some)
    with pytest.raises(ModelUnavailable):
        attempts.retry_or_raise(error, some)
    assert attempts.suspicion.crashes == 0


def test_a_runner_that_was_reached_and_then_cannot_be_has_stopped() -> None:
    attempts = on(Pool())
    attempts.delivered = False
    some: Any = Replica()
    attempts.retry_or_raise(CRASH, some)
    attempts.retry_or_raise(ModelUnavailable("service unreachable: failed to connect to all addresses"), some)
    with pytest.raises(RunnerLost):
        attempts.retry_or_raise(ModelUnavailable("service unreachable: failed to connect to all addresses"), some)

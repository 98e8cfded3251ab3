"""Whom the crash of a runner is blamed on."""

from typing import Any

import pytest

from common.errors import RequestQuarantined, RunnerLost
from gateway.answers.attempts import SAME_CRASH_S, Attempts
from gateway.answers.record import RequestRecord
from gateway.core.asked.answers import Dialect

CRASH = RunnerLost("the runner ended")


class Replica:
    """As much of a connection as blame looks at."""

    has_suspect = False
    is_draining = False
    suspect_crashed_s: float | None = None

    class info:  # noqa: N801  # stands for a value
        key = "p/1/i"


class Pool:
    """A clock."""

    time_s = 100.0

    def now_s(self) -> float:
        return self.time_s

    def mark_lost(self, replica: Replica) -> None: ...


def on(pool: Pool) -> Attempts:
    some: Any = pool
    return Attempts(pool=some, record=RequestRecord(dialect=Dialect.OPENAI, route=""), may_resume=True, delivered=True)


def sees_crash(attempts: Attempts, replica: Replica) -> None:
    some: Any = replica
    attempts.judge(CRASH, some)


@pytest.mark.parametrize("late_s", [0.0, SAME_CRASH_S / 2])
def test_a_neighbour_is_not_blamed_for_the_crash_of_a_suspect_however_late_it_hears_of_it(late_s: float) -> None:
    pool = Pool()
    first, second = Replica(), Replica()
    poison, neighbour = on(pool), on(pool)
    sees_crash(poison, first)
    sees_crash(neighbour, first)
    assert (poison.suspicion.crashes, neighbour.suspicion.crashes) == (1, 1)  # nobody knows yet who it was
    second.has_suspect = True
    with pytest.raises(RequestQuarantined):
        sees_crash(poison, second)
    second.has_suspect = False  # the suspect has gone
    pool.time_s += late_s
    neighbour.answer_tokens = neighbour.suspicion.harmless_from  # past its probation: it may run beside others
    sees_crash(neighbour, second)
    assert neighbour.suspicion.crashes == 1
    assert neighbour.resumes == 2


def test_another_replica_is_another_crash() -> None:
    pool = Pool()
    request = on(pool)
    sees_crash(request, Replica())
    with pytest.raises(RequestQuarantined):
        sees_crash(request, Replica())

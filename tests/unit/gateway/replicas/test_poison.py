"""Reports of requests that ended replicas: their time and their names."""

import asyncio

from common.clock import SystemClock
from gateway.core.dispatch.resume import poison_name
from gateway.core.models.routes import ReplicaInfo, ReplicaState
from gateway.replicas.poison import REPORTED_S, PoisonRequests
from tests.waiting import until

FOR_EVER_S = 3600.0


class HandClock(SystemClock):
    """Stands still until a test moves it."""

    time_s = 100.0

    def now_s(self) -> float:
        return self.time_s


def replica(placement_id: str) -> ReplicaInfo:
    return ReplicaInfo(
        placement_id=placement_id, generation=1, incarnation="i", node_id="a", address="", state=ReplicaState.READY,
        context_tokens=1, slots_total=1,
    )  # fmt: skip


def told(poisoned: PoisonRequests) -> dict[bytes, list[str]]:
    return {name: [one.placement_id for one in crashed] for name, crashed in poisoned.known()}


async def test_a_request_is_told_for_some_seconds_with_every_replica_that_it_ended() -> None:
    clock = HandClock()
    poisoned = PoisonRequests(clock)
    poisoned.add(b"r", [replica("p"), replica("q")])
    clock.time_s += REPORTED_S / 2
    poisoned.add(b"s", [replica("u")])
    assert told(poisoned) == {b"r": ["p", "q"], b"s": ["u"]}
    poisoned.add(b"r", [replica("v")])  # the same question, asked by somebody else at the same moment
    clock.time_s += REPORTED_S * 0.75
    assert told(poisoned) == {b"s": ["u"], b"r": ["p", "q", "v"]}
    clock.time_s += REPORTED_S
    assert told(poisoned) == {}
    poisoned.add(b"r", [replica("w")])
    assert told(poisoned) == {b"r": ["w"]}


async def test_the_oldest_goes_where_too_many_are_remembered() -> None:
    poisoned = PoisonRequests(HandClock())
    for number in range(100):
        poisoned.add(bytes([number]), [replica("p")])
    assert bytes([99]) in told(poisoned)
    assert bytes([0]) not in told(poisoned)


async def test_whoever_waits_for_news_hears_at_once_and_of_each_only_once() -> None:
    poisoned = PoisonRequests(HandClock())
    waiting = asyncio.create_task(poisoned.news_within(FOR_EVER_S))
    poisoned.add(b"r", [replica("p")])
    await until(waiting.done, what="the news has come")
    waiting = asyncio.create_task(poisoned.news_within(0.0))
    await until(waiting.done, what="there was none within no time")
    poisoned.add(b"s", [replica("p")])
    await poisoned.news_within(FOR_EVER_S)


def test_a_name_is_of_the_question_and_the_tenant_and_does_not_tell_them() -> None:
    names = {poison_name(body, salt=salt) for body in ("a", "b") for salt in ("", "x", "y")}
    assert len(names) == 6
    assert poison_name("a", salt="x") == poison_name("a", salt="x")
    assert {len(name) for name in names} == {8}
    assert poison_name("\ud800", salt="")

"""Order in which waiting requests get slots."""

from dataclasses import replace

import pytest

from common.errors import QueueFull
from common.spec.bands import Band
from common.spec.pace import RunnerPace
from gateway.core.dispatch.admission import (
    BUSY_TEXT,
    DrainRate,
    Waiter,
    check_bytes,
    check_room,
    needs_load,
    plan_grants,
    retry_after_s,
    waiting_max,
)
from gateway.core.dispatch.fairness import NO_CLAIM, SlotClaim
from gateway.core.dispatch.prompt_prefixes import Holdings, name_prefixes
from gateway.core.dispatch.replica_choice import ReplicaCandidate, ReplicaNeed, choose_replica
from tests.unit.gateway.core.dispatch.test_fairness import counts

PROMPT = name_prefixes([b"a long prompt, " * 1000], salt="t")


def candidate(
    key: str,
    *,
    free: int = 1,
    total: int = 4,
    context: int = 2048,
    work: int = 0,
    holds: bool = False,
    open_to: tuple[int, ...] = (),
) -> ReplicaCandidate:
    return ReplicaCandidate(
        key=key,
        context_tokens=context,
        slots_total=total,
        slots_free=free,
        slots_open=open_to,
        work=work,
        holdings=Holdings(frozenset(PROMPT.names) if holds else frozenset()),
    )


def waiter(number: int, context: int | None = None, avoided: frozenset[str] = frozenset()) -> Waiter:
    return Waiter(number=number, need=ReplicaNeed(context_tokens=context, avoided=avoided))


def test_a_full_replica_takes_as_many_requests_of_a_higher_band_as_it_has_slots_to_give() -> None:
    full = candidate("full", free=0, open_to=(3, 1))
    urgent = [replace(waiter(number), claim=SlotClaim(band=Band.HIGH)) for number in (1, 2)]
    grants = plan_grants([*urgent, waiter(3), waiter(4)], [full])
    assert [grant.number for grant in grants] == [1, 2], "the only slot of a low band is gone, too"
    assert [grant.number for grant in plan_grants([waiter(3), waiter(4)], [full])] == [3]
    low = replace(waiter(5), claim=SlotClaim(band=Band.LOW))
    assert plan_grants([low], [full]) == []


def test_a_free_slot_precedes_one_that_must_be_given() -> None:
    replicas = [candidate("full", free=0, holds=True, open_to=(4, 4)), candidate("free", free=1)]
    urgent = replace(waiter(1), claim=SlotClaim(band=Band.HIGH), need=ReplicaNeed(prefixes=PROMPT))
    assert [grant.replica_key for grant in plan_grants([urgent, urgent], replicas)] == ["free", "full"]


def test_the_least_busy_replica_is_chosen() -> None:
    assert (
        choose_replica([candidate("a", free=1), candidate("b", free=3), candidate("c", free=2)], ReplicaNeed()) == "b"
    )


def test_a_held_prefix_outweighs_load() -> None:
    replicas = [candidate("a", free=1, holds=True), candidate("b", free=4)]
    assert choose_replica(replicas, ReplicaNeed(prefixes=PROMPT)) == "a"


def test_equally_free_replicas_are_told_apart_by_work() -> None:
    assert choose_replica([candidate("a", work=3), candidate("b", work=1)], ReplicaNeed()) == "b"


def test_full_small_and_avoided_replicas_are_left_out() -> None:
    candidates = [candidate("full", free=0), candidate("small", context=100), candidate("failed")]
    assert choose_replica(candidates, ReplicaNeed(context_tokens=512, avoided=frozenset({"failed"}))) is None


def test_slots_go_to_the_oldest_first() -> None:
    grants = plan_grants([waiter(1), waiter(2), waiter(3)], [candidate("a", free=2)])
    assert [(grant.number, grant.replica_key) for grant in grants] == [(1, "a"), (2, "a")]


def test_grants_spread_over_replicas() -> None:
    grants = plan_grants([waiter(1), waiter(2)], [candidate("a", free=2), candidate("b", free=2)])
    assert {grant.replica_key for grant in grants} == {"a", "b"}


def test_one_that_no_replica_suits_does_not_hold_up_the_others() -> None:
    grants = plan_grants([waiter(1, context=8192), waiter(2)], [candidate("a")])
    assert [grant.number for grant in grants] == [2]


def test_no_slot_is_given_twice() -> None:
    candidates = [candidate("a", free=3), candidate("b", free=1)]
    grants = plan_grants([waiter(number) for number in range(10)], candidates)
    keys = [grant.replica_key for grant in grants]
    assert (keys.count("a"), keys.count("b")) == (3, 1)


def test_busy_is_not_absent() -> None:
    busy = [candidate("a", free=0)]
    assert not needs_load(waiter(1), busy)
    assert needs_load(waiter(1), [])
    assert needs_load(waiter(1, context=8192), busy)
    assert needs_load(waiter(1, avoided=frozenset({"a"})), busy)


def test_the_queue_is_bounded_by_slots_and_by_the_setting() -> None:
    assert waiting_max(slots_total=8, queue_max=512) == 32
    assert waiting_max(slots_total=1, queue_max=512) == 16
    assert waiting_max(slots_total=1000, queue_max=512) == 512
    assert waiting_max(slots_total=0, queue_max=512) == 32  # cold: as if it had the usual slots


def test_one_more_than_the_bound_is_told_when_to_come_again() -> None:
    check_room(NO_CLAIM, counts([NO_CLAIM] * 15), slots_total=1, queue_max=512, retry_after_s=3.0)
    with pytest.raises(QueueFull) as caught:
        check_room(NO_CLAIM, counts([NO_CLAIM] * 16), slots_total=1, queue_max=512, retry_after_s=3.0)
    assert (caught.value.message, caught.value.retry_after_s) == (BUSY_TEXT, 3.0)


def test_lower_bands_leave_a_higher_one_its_places_up_to_the_setting() -> None:
    low, high = SlotClaim(band=Band.LOW), SlotClaim(band=Band.HIGH)

    def room(claim: SlotClaim, waiting: list[SlotClaim], queue_max: int = 512) -> bool:
        try:
            check_room(claim, counts(waiting), slots_total=1, queue_max=queue_max, retry_after_s=1.0)
        except QueueFull:
            return False
        return True

    assert room(high, [low] * 16)
    assert not room(low, [low] * 16)
    assert not room(low, [high] * 16)
    assert room(high, [*[low] * 16, *[high] * 15])
    assert not room(high, [*[low] * 16, *[high] * 16])
    assert not room(high, [low] * 20, queue_max=20)


def test_the_drain_rate_follows_the_intervals_between_ends() -> None:
    drain = DrainRate().after_start(9.0).after_start(9.5).after_start(9.5)
    drain = drain.after_end(11.0)
    assert drain.interval_s == 2.0  # from the first start on
    drain = drain.after_end(13.0)
    assert drain.interval_s == 2.0
    assert drain.after_end(13.0).interval_s == pytest.approx(1.6)


def test_a_pause_in_which_nothing_runs_is_no_slow_answer() -> None:
    drain = DrainRate().after_start(0.0).after_end(2.0)
    after_the_night = drain.after_start(40_000.0).after_end(40_002.0)
    assert after_the_night.interval_s == drain.interval_s == 2.0
    cancelled = drain.after_start(40_000.0).after_cancel().after_start(50_000.0).after_end(50_002.0)
    assert cancelled.interval_s == 2.0


def test_who_runs_on_keeps_the_time_running() -> None:
    drain = DrainRate().after_start(0.0).after_start(1.0).after_end(3.0).after_start(90.0)
    assert drain.after_end(103.0).interval_s == pytest.approx(3.0 + 0.2 * (100.0 - 3.0))
    assert replace(drain, running=0).after_start(100.0).after_end(103.0).interval_s == 3.0


@pytest.mark.parametrize(
    ("work", "interval_s", "jitter", "expected_s"),
    [
        (10, 2.0, 0.0, 20.0),
        (10, 2.0, 1.0, 24.0),
        (10, 2.0, -1.0, 16.0),
        (0, 2.0, 0.0, 1.0),
        (1, 1.0, -1.0, 1.0),  # the bounds hold with the jitter
        (1000, 2.0, 1.0, 60.0),
        (10, None, 0.0, 10.0),  # before anything has ended: a second for each
    ],
)
def test_retry_after_is_work_ahead_over_the_drain_rate(
    work: int, interval_s: float | None, jitter: float, expected_s: float
) -> None:
    drain = DrainRate(interval_s=interval_s)
    assert retry_after_s(work_ahead=work, drain=drain, jitter=jitter) == pytest.approx(expected_s)


def test_prompts_that_wait_have_a_bound_in_bytes_and_a_single_one_may_always_wait() -> None:
    check_bytes(waiting=0, more=100 * 1024 * 1024, retry_after_s=1.0)
    check_bytes(waiting=32 * 1024 * 1024, more=32 * 1024 * 1024, retry_after_s=1.0)
    with pytest.raises(QueueFull):
        check_bytes(waiting=32 * 1024 * 1024, more=32 * 1024 * 1024 + 1, retry_after_s=1.0)


def test_two_suspects_never_share_a_replica() -> None:
    suspects = [Waiter(number=number, need=ReplicaNeed(is_suspect=True)) for number in range(3)]
    grants = plan_grants([*suspects, waiter(9)], [candidate("a", free=4), candidate("b", free=4)])
    assert [grant.number for grant in grants] == [0, 1, 9]
    assert {grant.replica_key for grant in grants[:2]} == {"a", "b"}


def test_a_suspect_keeps_its_replica_to_itself_when_others_were_let_in_after_it() -> None:
    order = [
        Waiter(number=0, need=ReplicaNeed(is_suspect=True)),
        waiter(1),
        Waiter(number=2, need=ReplicaNeed(is_suspect=True)),
    ]
    assert [grant.number for grant in plan_grants(order, [candidate("a", free=4)])] == [0, 1]


def test_what_was_just_given_counts_as_work_of_its_replica() -> None:
    idle = [replace(candidate(key, free=8, total=0)) for key in ("a", "b")]  # told apart by work alone
    grants = plan_grants([waiter(number) for number in range(4)], idle)
    assert sorted(grant.replica_key for grant in grants) == ["a", "a", "b", "b"]


def test_a_context_as_long_as_asked_for_is_long_enough() -> None:
    assert choose_replica([candidate("a", context=512)], ReplicaNeed(context_tokens=512)) == "a"
    assert choose_replica([candidate("a", context=511)], ReplicaNeed(context_tokens=512)) is None


@pytest.mark.parametrize(
    ("need", "on_devices", "is_suited"),
    [
        (ReplicaNeed(), 0, True),
        (ReplicaNeed(require_gpu=True), 33, True),
        (ReplicaNeed(require_gpu=True), 32, False),
        (ReplicaNeed(num_gpu=10), 10, True),
        (ReplicaNeed(num_gpu=10), 11, False),
        (ReplicaNeed(num_gpu=10), 9, False),
        (ReplicaNeed(num_gpu=999), 33, True),  # more than there are: all of them
        (ReplicaNeed(num_gpu=999), 32, False),
        (ReplicaNeed(num_gpu=0), 0, True),
    ],
)
def test_a_replica_serves_who_wants_layers_on_devices_only_with_those_layers(
    need: ReplicaNeed, on_devices: int, is_suited: bool
) -> None:
    replica = replace(candidate("a"), layers_on_devices=on_devices, layers_total=33)
    assert (choose_replica([replica], need) == "a") is is_suited
    assert needs_load(Waiter(number=1, need=need), [replica]) is not is_suited


def test_what_runs_beside_a_prompt_slows_its_evaluation_down() -> None:
    fast_but_busy = replace(candidate("busy", free=1, total=8), pace=RunnerPace(batch_tokens=8, token_s=1 / 1500))
    slow_but_idle = replace(candidate("idle", free=8, total=8), pace=RunnerPace(batch_tokens=8, token_s=1 / 1000))
    assert choose_replica([fast_but_busy, slow_but_idle], ReplicaNeed(prefixes=PROMPT)) == "idle"

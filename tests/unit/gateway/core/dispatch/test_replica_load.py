"""Estimated load of a replica."""

from typing import Any

from gateway.core.dispatch.replica_load import ReplicaLoad, ended, reported, saturated, started, unreachable
from gateway.core.models.routes import ReplicaState

READY = ReplicaLoad(state=ReplicaState.READY, slots_total=4)


def test_requests_sent_since_the_report_count() -> None:
    load = started(started(READY))
    assert (load.work, load.slots_free) == (2, 2)


def test_requests_of_other_gateways_count_too() -> None:
    load = reported(started(READY), state=ReplicaState.READY, slots_total=4, slots_busy=3, queued=0)
    assert load.slots_free == 1
    assert started(load).slots_free == 0


def test_an_end_frees_a_slot_before_the_next_report() -> None:
    load = reported(started(READY), state=ReplicaState.READY, slots_total=4, slots_busy=4, queued=0)
    assert ended(load).slots_free == 1


def test_own_requests_always_count_whatever_is_reported() -> None:
    load = reported(started(started(READY)), state=ReplicaState.READY, slots_total=4, slots_busy=0, queued=0)
    assert load.work == 2


def test_waiting_requests_inside_the_runner_leave_no_free_slot() -> None:
    load = reported(READY, state=ReplicaState.READY, slots_total=4, slots_busy=4, queued=3)
    assert ended(started(load)).slots_free == 0


def test_a_refusal_counts_as_full_until_the_next_report() -> None:
    load = saturated(ended(started(READY)))
    assert load.slots_free == 0
    assert reported(load, state=ReplicaState.READY, slots_total=4, slots_busy=1, queued=0).slots_free == 3


def test_unreachable_and_unready_replicas_have_no_free_slots() -> None:
    assert unreachable(READY).slots_free == 0
    assert ReplicaLoad(state=ReplicaState.DRAINING, slots_total=4).slots_free == 0
    assert reported(unreachable(READY), state=ReplicaState.READY, slots_total=4, slots_busy=0, queued=0).reachable


def test_the_end_of_a_refused_request_frees_no_slot_nor_do_ends_before_the_next_report() -> None:
    running = started(reported(READY, state=ReplicaState.READY, slots_total=4, slots_busy=0, queued=0))
    refused = saturated(started(running))
    assert [load.slots_free for load in (refused, ended(refused), ended(ended(refused)))] == [0, 0, 0]


def test_what_ended_before_a_refusal_makes_no_room_after_it() -> None:
    load = READY
    for _ in range(4):
        load = started(load)
    load = reported(load, state=ReplicaState.READY, slots_total=4, slots_busy=4, queued=0)
    for _ in range(4):
        load = ended(load)
    assert saturated(started(load)).slots_free == 0


def test_waiting_requests_of_others_are_work_that_comes_before() -> None:
    load = reported(READY, state=ReplicaState.READY, slots_total=4, slots_busy=2, queued=1)
    assert (load.work, load.slots_free) == (3, 1)


def test_how_far_a_load_is_comes_from_the_replica_itself() -> None:
    loading = reported(READY, state=ReplicaState.LOADING, slots_total=4, slots_busy=0, queued=0, load_fraction=0.4)
    assert (loading.load_fraction, loading.slots_free) == (0.4, 0)


def test_slots_of_lower_bands_are_counted_down_until_the_next_report() -> None:
    full: dict[str, Any] = {"state": ReplicaState.READY, "slots_total": 4, "slots_busy": 4, "queued": 0}
    load = started(reported(READY, open_slots=(3, 1), **full))
    assert load.slots_open == (2, 0)
    assert reported(load, open_slots=(2, 1), **full).slots_open == (2, 1)
    assert saturated(load).slots_open == ()
    assert unreachable(load).slots_open == ()

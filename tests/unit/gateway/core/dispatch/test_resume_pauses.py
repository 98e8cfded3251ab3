"""Pauses of an answer between two replicas before it tries another."""

from gateway.core.dispatch.resume import AGAIN_S_MAX, AGAIN_S_MIN, AGAIN_S_TOLD_MAX, again_after_s

# What a stream may pause for beyond a load, and what of it is gone once a dead runner is known to be dead.
BEYOND_LOAD_S = 2.0
NOTICED_S = 0.2


def test_pauses_grow_with_the_wait_and_the_longest_keeps_the_promise_of_streams() -> None:
    assert [again_after_s(waited_s, None) for waited_s in (0, 1, 2, 4, 6, 100)] == [0.5, 0.5, 0.5, 1.0, 1.5, 1.5]
    assert AGAIN_S_MIN < AGAIN_S_MAX < BEYOND_LOAD_S - NOTICED_S


def test_who_is_told_to_come_later_does_but_looks_again_now_and_then() -> None:
    assert again_after_s(0, 1.0) == AGAIN_S_MIN  # soon is soon
    assert again_after_s(0, 4.0) == 4.0
    assert again_after_s(60, 300.0) == AGAIN_S_TOLD_MAX
    assert again_after_s(0, 0.0) == AGAIN_S_MIN


def test_in_half_a_minute_it_asks_less_than_half_as_often_as_with_the_shortest_pause() -> None:
    asked, waited_s = 0, 0.0
    while waited_s < 30.0:
        asked, waited_s = asked + 1, waited_s + again_after_s(waited_s, None)
    assert asked < 30.0 / AGAIN_S_MIN / 2

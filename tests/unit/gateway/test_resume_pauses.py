"""How long an answer between two replicas waits before it asks for one again."""

from gateway.core.resume import AGAIN_S_MAX, AGAIN_S_MIN, AGAIN_S_TOLD_MAX, again_after_s

# What a stream may pause for beyond a load, and what is left of it once a dead runner is known to be dead.
BEYOND_LOAD_S = 2.0
NOTICED_S = 0.2


def test_pauses_double_and_the_longest_keeps_the_promise_of_streams() -> None:
    assert [again_after_s(refusals, None) for refusals in (1, 2, 3, 4, 10_000)] == [0.5, 1.0, 1.5, 1.5, 1.5]
    assert AGAIN_S_MIN < AGAIN_S_MAX < BEYOND_LOAD_S - NOTICED_S


def test_who_is_told_to_come_later_does_but_looks_again_now_and_then() -> None:
    assert again_after_s(1, 1.0) == 1.0
    assert again_after_s(3, 1.0) == AGAIN_S_MAX
    assert again_after_s(1, 4.0) == 4.0
    assert again_after_s(9, 300.0) == AGAIN_S_TOLD_MAX
    assert again_after_s(1, 0.0) == AGAIN_S_MIN

"""Division of a node's cores between runners that have work."""

import random

import pytest

from runner.core.threads.cores import RELEASE_S, SETTLE_S, CoreClaim, CoreDivision


class World:
    """Runners that come, work and go as a test says."""

    def __init__(self, *, cores: int = 8) -> None:
        self.division = CoreDivision(cores)
        self.now_s = 100.0
        self.claims: dict[str, CoreClaim] = {}

    def put(self, key: str, *, busy: bool = False, most: int = 8, fixed: bool = False) -> None:
        self.claims[key] = CoreClaim(threads_max=most, busy=busy, fixed=fixed)

    def after(self, seconds: float = 0.0) -> dict[str, int]:
        self.now_s += seconds
        return self.division.divide(self.claims, self.now_s)

    def settled(self) -> dict[str, int]:
        self.after()
        return self.after(SETTLE_S)


def test_who_works_alone_has_every_core_and_who_rests_would_get_half() -> None:
    world = World()
    world.put("a", busy=True)
    world.put("b")

    assert world.settled() == {"a": 8, "b": 4}


def test_two_that_work_have_half_of_the_cores_each() -> None:
    world = World()
    world.put("a", busy=True)
    world.put("b", busy=True)

    assert world.settled() == {"a": 4, "b": 4}


def test_what_a_small_model_does_not_want_is_the_others_and_no_core_is_left_over() -> None:
    world = World()
    world.put("small", busy=True, most=1)
    world.put("x", busy=True)
    world.put("y", busy=True)

    assert world.settled() == {"small": 1, "x": 3, "y": 4}


def test_the_number_that_somebody_chose_counts_and_is_nobody_s_to_change() -> None:
    world = World()
    world.put("chosen", busy=True, most=6, fixed=True)
    world.put("other", busy=True)
    assert world.settled() == {"other": 2}

    world.put("chosen", busy=False, most=6, fixed=True)
    world.after()
    assert world.after(RELEASE_S) == {"other": 8}


def test_each_has_one_thread_where_there_are_more_runners_than_cores() -> None:
    world = World(cores=2)
    for key in "abcd":
        world.put(key, busy=True)
    world.put("chosen", busy=True, most=5, fixed=True)

    assert world.settled() == dict.fromkeys("abcd", 1)


def test_a_short_request_makes_nobody_slower() -> None:
    world = World()
    world.put("long", busy=True)
    world.put("short")
    world.settled()

    world.put("short", busy=True)
    assert world.after()["long"] == 8
    world.put("short", busy=False)
    assert world.after(SETTLE_S / 2)["long"] == 8
    assert world.after(SETTLE_S)["long"] == 8


def test_many_short_requests_in_a_row_are_work() -> None:
    world = World()
    world.put("long", busy=True)
    for _ in range(4):
        world.put("short", busy=True)
        world.after(SETTLE_S / 4)
        world.put("short", busy=False)
        world.after(SETTLE_S / 4)

    world.put("short", busy=True)
    assert world.after(SETTLE_S / 4)["long"] == 4


def test_a_pause_between_two_questions_changes_nothing_and_a_long_one_gives_the_cores_back() -> None:
    world = World()
    world.put("a", busy=True)
    world.put("b", busy=True)
    world.settled()

    world.put("b", busy=False)
    world.after()
    assert world.after(RELEASE_S * 0.9)["a"] == 4
    world.put("b", busy=True)
    assert world.after()["a"] == 4
    world.put("b", busy=False)
    world.after()
    assert world.after(RELEASE_S) == {"a": 8, "b": 4}


def test_it_says_when_time_alone_changes_something() -> None:
    world = World()
    world.put("a", busy=True)
    world.after()
    assert world.division.due_s() == pytest.approx(world.now_s + SETTLE_S)

    world.after(SETTLE_S)
    assert world.division.due_s() is None

    world.put("a", busy=False)
    world.after(5.0)
    assert world.division.due_s() == pytest.approx(world.now_s + RELEASE_S)
    world.after(RELEASE_S)
    assert world.division.due_s() is None


def test_work_of_a_runner_that_is_gone_is_forgotten() -> None:
    world = World()
    world.put("a", busy=True)
    world.put("b", busy=True)
    world.settled()

    del world.claims["b"]
    assert world.after() == {"a": 8}


def test_with_any_runners_the_cores_suffice_where_they_can() -> None:
    draw = random.Random(7)
    for _ in range(2000):
        world = World(cores=draw.randint(1, 16))
        for number in range(draw.randint(1, 6)):
            chosen = draw.random() < 0.2
            world.put(str(number), busy=draw.random() < 0.7, most=draw.randint(1, 16), fixed=chosen)
        shares = world.settled()

        claims, cores = world.claims, world.division.cores
        assert shares.keys() == {key for key, claim in claims.items() if not claim.fixed}
        assert all(1 <= threads <= claims[key].threads_max for key, threads in shares.items())
        working = [key for key in shares if claims[key].busy]
        left = cores - sum(claim.threads_max for claim in claims.values() if claim.fixed and claim.busy)
        used = sum(shares[key] for key in working)
        wanted = sum(claims[key].threads_max for key in working)
        if left >= len(working):
            assert used == min(left, wanted), (claims, shares)
        else:
            assert all(shares[key] == 1 for key in working)

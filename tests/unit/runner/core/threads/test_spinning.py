"""Spinning of compute threads at barriers, and the cases in which they give their core away."""

from runner.core.threads.spinning import HOLD_MIN_S, ProcessorTimes, SpinRule

CORES = 2


class World:
    """Counters that move on as a test says."""

    def __init__(self) -> None:
        self.rule = SpinRule(cores=CORES)
        self.counters = ProcessorTimes(now_s=100.0, busy_s=0.0, own_s=0.0, waiting_s=0.0)
        self.rule.look(self.counters)

    def pass_time(self, seconds: float, *, own: float, others: float, waiting: float = 0.0) -> bool:
        """`own`, `others`: cores in use; `waiting`: threads of ours without a core."""
        now_s, busy_s, own_s, waiting_s = self.counters
        self.counters = ProcessorTimes(
            now_s=now_s + seconds,
            busy_s=busy_s + seconds * (own + others),
            own_s=own_s + seconds * own,
            waiting_s=waiting_s + seconds * waiting,
        )
        return self.rule.look(self.counters)


def test_spinning_is_short_until_the_cores_were_seen_free() -> None:
    world = World()

    assert world.rule.short
    assert not world.pass_time(0.5, own=1.8, others=0.1)


def test_a_gateway_beside_the_runner_is_no_reason_to_sleep() -> None:
    world = World()

    assert not world.pass_time(0.5, own=1.5, others=0.4)
    assert not world.pass_time(0.5, own=1.5, others=0.4, waiting=0.2)


def test_spinning_stays_short_while_others_use_the_cores() -> None:
    world = World()

    assert world.pass_time(0.5, own=0.8, others=1.2)


def test_threads_that_wait_for_cores_stop_spinning() -> None:
    world = World()
    world.pass_time(0.5, own=1.8, others=0.0)

    assert world.pass_time(0.5, own=1.0, others=1.0, waiting=1.0)


def test_an_idle_runner_changes_nothing() -> None:
    world = World()
    world.pass_time(0.5, own=1.8, others=0.0)

    assert not world.pass_time(0.5, own=0.0, others=2.0)


def test_one_call_after_a_pause_is_too_little_to_see_threads_wait() -> None:
    world = World()
    world.pass_time(0.5, own=1.8, others=0.0)
    world.pass_time(9.0, own=0.0, others=2.0)

    assert not world.pass_time(0.03, own=1.0, others=1.0, waiting=1.0)
    assert world.pass_time(0.03, own=1.0, others=1.0, waiting=1.0), "with the one before it is enough"


def test_after_a_try_in_vain_the_next_one_waits_longer() -> None:
    world = World()
    world.pass_time(0.5, own=1.8, others=0.0)
    world.pass_time(0.5, own=1.0, others=1.0, waiting=1.0)

    assert world.pass_time(HOLD_MIN_S, own=1.8, others=0.0)
    assert not world.pass_time(HOLD_MIN_S, own=1.8, others=0.0)


def test_a_long_quiet_time_makes_the_next_try_early_again() -> None:
    world = World()
    world.pass_time(0.5, own=1.8, others=0.0)
    world.pass_time(100.0, own=1.8, others=0.0)
    world.pass_time(0.5, own=1.0, others=1.0, waiting=1.0)

    assert not world.pass_time(HOLD_MIN_S, own=1.8, others=0.0)

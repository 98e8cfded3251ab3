from cli.core.restart import STABLE_AFTER_S, RestartState, after_death


def deaths(*uptimes_s: float) -> RestartState:
    state = RestartState()
    for uptime_s in uptimes_s:
        state = after_death(state, uptime_s=uptime_s)
    return state


def test_the_first_restart_waits_half_a_second() -> None:
    assert deaths(0.1).delay_s == 0.5


def test_the_wait_doubles_with_each_death_in_a_row_up_to_half_a_minute() -> None:
    delays_s = [deaths(*[0.1] * count).delay_s for count in range(1, 10)]

    assert delays_s == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]


def test_a_stable_life_makes_the_next_death_the_first_again() -> None:
    assert deaths(0.1, 0.1, 0.1, STABLE_AFTER_S).delay_s == 0.5


def test_a_life_just_short_of_stable_counts_on() -> None:
    assert deaths(0.1, STABLE_AFTER_S - 0.1).delay_s == 1.0


def test_a_crash_loop_of_weeks_keeps_the_longest_wait() -> None:
    assert RestartState(deaths_in_a_row=100_000).delay_s == 30.0


def test_every_death_is_counted_in_the_total() -> None:
    assert deaths(0.1, 100.0, 100.0).deaths_total == 3

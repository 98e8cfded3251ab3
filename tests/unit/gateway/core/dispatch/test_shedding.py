"""Load shedding: requests refused under pressure, and their order."""

import pytest

from common.errors import QueueFull
from gateway.core.dispatch.shedding import (
    CONNECTIONS_MAX,
    CONNECTIONS_OF_ADDRESS_MAX,
    LARGE_BODY_BYTES,
    Connections,
    Pressure,
)


def after(*looks: tuple[float, float, float]) -> Pressure:
    """Pressure after looks of (time, lag, share of memory)."""
    pressure = Pressure()
    for now_s, lag_s, share in looks:
        pressure.measured(now_s=now_s, lag_s=lag_s, memory_share=share)
    return pressure


def refuses(pressure: Pressure, size_bytes: int) -> bool:
    try:
        pressure.check_body(size_bytes)
    except QueueFull as error:
        return error.retry_after_s is not None
    return False


def test_a_moment_of_lag_is_no_reason() -> None:
    pressure = after((1.0, 0.5, 0.1), (1.2, 0.0, 0.1), (1.4, 0.5, 0.1))
    assert not refuses(pressure, 10**7)


def test_lag_that_lasts_turns_large_bodies_away_and_small_ones_not() -> None:
    pressure = after((1.0, 0.2, 0.1), (1.5, 0.2, 0.1), (2.0, 0.2, 0.1))
    assert refuses(pressure, LARGE_BODY_BYTES + 1)
    assert not refuses(pressure, LARGE_BODY_BYTES)
    pressure.measured(now_s=2.1, lag_s=0.0, memory_share=0.1)
    assert not refuses(pressure, LARGE_BODY_BYTES + 1)


def test_one_look_that_came_a_second_late_is_lag_that_lasted() -> None:
    assert refuses(after((5.0, 1.2, 0.1)), LARGE_BODY_BYTES + 1)


@pytest.mark.parametrize(
    ("share", "connections", "bodies"), [(0.89, True, True), (0.9, False, True), (0.95, False, False)]
)
def test_memory_closes_the_door_before_it_refuses_bodies(share: float, connections: bool, bodies: bool) -> None:
    pressure = after((1.0, 0.0, share))
    assert Connections().admit("a", pressure) is connections
    assert refuses(pressure, 1) is not bodies


def test_an_address_has_its_own_limit_and_all_together_have_one() -> None:
    connections, calm = Connections(), Pressure()
    assert [connections.admit("a", calm) for _ in range(CONNECTIONS_OF_ADDRESS_MAX + 1)].count(True) == 64
    others = [connections.admit(f"b{number}", calm) for number in range(CONNECTIONS_MAX)]
    assert others.count(True) == CONNECTIONS_MAX - CONNECTIONS_OF_ADDRESS_MAX
    connections.leave("a")
    assert connections.admit("a", calm)
    assert not connections.admit("a", calm)


def test_nothing_is_remembered_of_those_who_left() -> None:
    connections, calm = Connections(), Pressure()
    assert connections.admit("a", calm)
    connections.leave("a")
    assert (connections.total, connections.by_address) == (0, {})

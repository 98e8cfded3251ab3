"""Load shedding: requests refused under pressure, and their order."""

import pytest

from common.errors import QueueFull
from gateway.core.dispatch.shedding import (
    CONNECTIONS_MAX,
    CONNECTIONS_OF_ADDRESS_MAX,
    Connections,
    Pressure,
    connections_max,
)


def refuses(pressure: Pressure) -> bool:
    try:
        pressure.check_body()
    except QueueFull as error:
        return error.retry_after_s is not None
    return False


@pytest.mark.parametrize(
    ("share", "connections", "bodies"), [(0.89, True, True), (0.9, False, True), (0.95, False, False)]
)
def test_memory_closes_the_door_before_it_refuses_bodies(share: float, connections: bool, bodies: bool) -> None:
    pressure = Pressure(memory_share=share)
    assert Connections().admit("a", pressure) is connections
    assert refuses(pressure) is not bodies


def test_an_address_has_its_own_limit_and_all_together_have_one() -> None:
    connections, calm = Connections(), Pressure()
    assert [connections.admit("a", calm) for _ in range(CONNECTIONS_OF_ADDRESS_MAX + 1)].count(True) == 64
    others = [connections.admit(f"b{number}", calm) for number in range(CONNECTIONS_MAX)]
    assert others.count(True) == CONNECTIONS_MAX - CONNECTIONS_OF_ADDRESS_MAX
    connections.leave("a")
    assert connections.admit("a", calm)
    assert not connections.admit("a", calm)


@pytest.mark.parametrize(
    ("open_files", "connections"), [(-1, 1000), (65_536, 1000), (1462, 1000), (1024, 672), (256, 96), (64, 1)]
)
def test_a_process_with_few_open_files_takes_fewer_connections(open_files: int, connections: int) -> None:
    assert connections_max(open_files) == connections
    admitting, calm = Connections(limit=connections), Pressure()
    admitted = [admitting.admit(f"a{number}", calm) for number in range(connections + 9)]
    assert admitted.count(True) == connections


def test_nothing_is_remembered_of_those_who_left() -> None:
    connections, calm = Connections(), Pressure()
    assert connections.admit("a", calm)
    connections.leave("a")
    assert (connections.total, connections.by_address) == (0, {})

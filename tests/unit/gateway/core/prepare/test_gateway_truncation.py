"""Messages that a long conversation drops."""

import pytest

from gateway.core.prepare.turns import DropSearch, droppable_indices, without_oldest
from gateway.core.request.answers import Message


def conversation(roles: str) -> tuple[Message, ...]:
    names = {"s": "system", "u": "user", "a": "assistant"}
    return tuple(Message(role=names[role], content=f"{role}{index}") for index, role in enumerate(roles))


@pytest.mark.behaviour("B-57")
@pytest.mark.parametrize(
    ("roles", "drop_count", "kept"),
    [
        ("suau", 0, ["s0", "u1", "a2", "u3"]),
        ("suau", 1, ["s0", "a2", "u3"]),
        ("suau", 2, ["s0", "u3"]),
        ("usau", 2, ["s1", "u3"]),
        ("u", 5, ["u0"]),
        ("ss", 9, ["s0", "s1"]),
    ],
)
def test_the_oldest_go_first_and_system_and_last_stay(roles: str, drop_count: int, kept: list[str]) -> None:
    assert [message.content for message in without_oldest(conversation(roles), drop_count)] == kept


@pytest.mark.parametrize("needed", range(8))
def test_the_search_finds_the_smallest_number_that_fits(needed: int) -> None:
    messages = conversation("s" + "ua" * 4 + "u")
    search = DropSearch(0, len(droppable_indices(messages)))
    probes = 0
    while not search.found:
        search, probes = search.after(fits=search.probe >= needed), probes + 1
    assert search.low == needed
    assert probes <= 4

"""The search for the leader: whether it goes on after refusals, and the error that it ends with."""

import pytest

from common.errors import ModelUnavailable, NotLeading, PunaError, StaleFence, StoreUnreachable
from common.grpc.errors import UNREACHABLE
from scheduler.leader_search import LEADER_WAIT_S, LeaderSearch

STANDBY = NotLeading("another scheduler leads: 10.0.0.1:7500")
GONE = ModelUnavailable(f"{UNREACHABLE}: 10.0.0.1:7500: Connection refused")
NO_STORE = StoreUnreachable("state store unreachable: Timeout")
BROKEN = ModelUnavailable("the model crashed too often", retry_after_s=30)


async def outcome(wait_s: float, *refusals: PunaError, addresses: int = 2) -> ModelUnavailable | None:
    """Return the error that a search ends with after these refusals; None: it goes on."""
    search = LeaderSearch(wait_s)
    try:
        for refusal in refusals:
            await search.go_on(refusal, addresses=addresses)
    except ModelUnavailable as error:
        return error
    return None


@pytest.mark.parametrize("refusals", [(STANDBY, GONE), (GONE, STANDBY), (NO_STORE, STANDBY), (StaleFence("1"), GONE)])
async def test_all_are_asked_again_while_a_leader_is_coming_and_then_none_is_named(refusals: tuple[PunaError]) -> None:
    assert await outcome(LEADER_WAIT_S, *refusals) is None
    ended = await outcome(0, *refusals)
    assert ended is not None
    assert ended.retry_after_s is not None
    assert "10.0.0.1" not in ended.message


@pytest.mark.parametrize(
    ("refusals", "said"),
    [
        ((GONE, GONE), "the scheduler cannot be reached"),
        ((GONE, NO_STORE), NO_STORE.message),
        ((BROKEN, STANDBY), BROKEN.message),
        ((STANDBY, BROKEN), BROKEN.message),
    ],
)
async def test_nothing_is_waited_for_where_none_can_lead_or_the_leader_refused(
    refusals: tuple[PunaError], said: str
) -> None:
    ended = await outcome(LEADER_WAIT_S, *refusals)
    assert ended is not None
    assert ended.message == said


async def test_a_lone_address_is_asked_once_where_it_is_gone() -> None:
    assert await outcome(LEADER_WAIT_S, GONE, addresses=1) is not None
    assert await outcome(LEADER_WAIT_S, GONE, addresses=0) is not None, "a name that does not resolve"

"""Fair order of tenants."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import QueueFull
from common.spec.bands import Band
from gateway.core.dispatch.admission import check_room, tenant_waiting_max
from gateway.core.dispatch.fairness import NO_CLAIM, Elsewhere, Shares, SlotClaim, WaitingCounts


@dataclass(frozen=True)
class One:
    number: int
    claim: SlotClaim = NO_CLAIM


def of(tenant: str, tokens: int = 100, *, weight: int = 1, band: Band = Band.NORMAL) -> SlotClaim:
    return SlotClaim(tenant=tenant, tokens=tokens, weight=weight, band=band)


def counts(claims: Iterable[SlotClaim]) -> WaitingCounts:
    found = WaitingCounts()
    for claim in claims:
        found.add(claim)
    return found


def serve(shares: Shares, waiting: list[One]) -> One:
    """Give a slot to the next one."""
    first = shares.order(waiting)[0]
    waiting.remove(first)
    shares.give(first.claim)
    return first


def test_without_tenants_who_came_first_is_served_first() -> None:
    shares, waiting = Shares(), [One(number) for number in (3, 1, 2)]
    assert [serve(shares, waiting).number for _ in range(3)] == [1, 2, 3]


@given(
    before=st.integers(0, 200),
    waiting=st.integers(1, 200),
    tokens=st.integers(1, 5000),
    quiet_tokens=st.integers(1, 5000),
    used=st.lists(st.integers(0, 5000), max_size=200),
)
def test_a_quiet_tenant_is_served_next_to_a_loud_one(
    before: int, waiting: int, tokens: int, quiet_tokens: int, used: list[int]
) -> None:
    """However much the loud one was given and has waiting: one request of it at most goes before."""
    shares = Shares()
    queue = [One(number, of("loud", tokens)) for number in range(before + waiting)]
    for turn in range(before):
        shares.settle(serve(shares, queue).claim, used[turn] if turn < len(used) else tokens)
    queue.append(One(10_000, of("quiet", quiet_tokens)))
    turns = [serve(shares, queue).claim.tenant for _ in range(min(2, len(queue)))]
    assert "quiet" in turns


@given(
    weights=st.lists(st.integers(1, 5), min_size=2, max_size=4),
    sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=20),
)
def test_tenants_that_always_wait_get_tokens_by_their_weights(weights: list[int], sizes: list[int]) -> None:
    shares, given_tokens = Shares(), Counter[int]()
    numbers = iter(range(10**6))

    def request(tenant: int) -> One:
        number = next(numbers)
        return One(number, of(str(tenant), sizes[number % len(sizes)], weight=weights[tenant]))

    queue = [request(tenant) for tenant in range(len(weights)) for _ in range(2)]
    for _ in range(200):
        served = serve(shares, queue)
        tenant = int(served.claim.tenant)
        given_tokens[tenant] += served.claim.tokens
        queue.append(request(tenant))
        normalised = [given_tokens[one] / weights[one] for one in range(len(weights))]
        # The bound of start-time fair queueing: one request of each of the two, whatever came before.
        assert max(normalised) - min(normalised) <= 2 * max(sizes)


def test_real_numbers_count_not_those_that_were_claimed() -> None:
    shares = Shares()
    queue = [One(number, of("brief" if number % 2 else "long", 100)) for number in range(40)]
    served = Counter[str]()
    for _ in range(20):
        one = serve(shares, queue)
        served[one.claim.tenant] += 1
        shares.settle(one.claim, 10 if one.claim.tenant == "brief" else 200)
    assert served["brief"] > 2 * served["long"]


def test_who_was_away_saves_nothing_up() -> None:
    shares, queue = Shares(), [One(number, of("busy")) for number in range(120)]
    for _ in range(100):
        serve(shares, queue)
    queue += [One(1000 + number, of("back")) for number in range(20)]
    turns = Counter(serve(shares, queue).claim.tenant for _ in range(20))
    assert turns["busy"] >= 9


def test_a_band_goes_before_all_fairness() -> None:
    shares = Shares()
    for _ in range(50):
        shares.give(of("urgent"))
    queue = [One(1, of("quiet")), One(2, of("urgent", band=Band.HIGH)), One(3, of("late", band=Band.LOW))]
    assert [serve(shares, queue).number for _ in range(3)] == [2, 1, 3]


def test_a_loud_tenant_leaves_places_for_others_and_nobody_is_told_apart_without_tenants() -> None:
    def room(waiting: int, of_tenant: int | None) -> bool:
        mine = NO_CLAIM if of_tenant is None else of("mine")
        claims = [mine] * (of_tenant or 0)
        claims += [NO_CLAIM if of_tenant is None else of("other")] * (waiting - len(claims))
        try:
            check_room(mine, counts(claims), slots_total=4, queue_max=512, retry_after_s=1.0)
        except QueueFull:
            return False
        return True

    assert tenant_waiting_max(16) == 12
    assert (room(11, 11), room(12, 12), room(12, 0), room(15, 3), room(16, 0)) == (True, False, True, True, False)
    assert (room(15, None), room(16, None)) == (True, False)


@pytest.mark.parametrize("places", [1, 2, 3, 16, 512])
def test_everybody_has_a_place_at_least(places: int) -> None:
    assert 1 <= tenant_waiting_max(places) <= max(places - 1, 1)


def test_of_several_slots_at_once_a_loud_tenant_gets_its_share_and_no_more() -> None:
    queue = [One(number, of("loud")) for number in range(20)] + [One(20 + number, of("quiet")) for number in range(4)]
    assert Counter(one.claim.tenant for one in Shares().order(queue)[:8]) == {"loud": 4, "quiet": 4}


def test_what_a_tenant_has_urgent_counts_before_what_it_has_waiting_longer() -> None:
    """Its own low band must not use up the place of its normal one beside another tenant."""
    mine = [One(1, of("a", 1000, band=Band.LOW)), One(3, of("a", 10))]
    assert [one.number for one in Shares().order([*mine, One(4, of("b", 10))])] == [3, 4, 1]


def test_a_heavy_tenant_pays_the_difference_by_its_weight_as_it_paid_the_claim() -> None:
    shares = Shares()
    claim = of("heavy", 100, weight=10)
    shares.give(claim)
    shares.settle(claim, 1100)  # as if 1100 had been claimed: 110 of its share
    shares.give(of("light", 100))
    shares.give(of("light", 100))
    queue = [One(1, of("heavy", weight=10)), One(2, of("light"))]
    assert [one.claim.tenant for one in shares.order(queue)] == ["heavy", "light"]


def test_a_settlement_of_a_tenant_that_is_forgotten_changes_nothing() -> None:
    shares = Shares()
    shares.settle(of("gone"), 10_000)
    assert [one.number for one in shares.order([One(1, of("gone")), One(2, of("other"))])] == [1, 2]


def test_of_very_many_tenants_those_are_remembered_that_are_ahead() -> None:
    shares = Shares()
    shares.give(of("greedy", 10**6))
    for number in range(3000):
        shares.give(of(f"t{number}", 1))
    queue = [One(1, of("greedy", 1)), One(2, of("new", 1))]
    assert [one.claim.tenant for one in shares.order(queue)] == ["new", "greedy"]


def test_tenants_that_come_once_and_never_again_take_no_memory_for_ever() -> None:
    shares = Shares()
    for number in range(5000):
        shares.give(of(f"t{number}", 1))
        shares.give(of("regular", 1))  # time goes on
    assert len(shares._ends) <= 1025


def test_tokens_that_were_given_elsewhere_count_as_if_they_were_given_here() -> None:
    shares = Shares()
    shares.learn(Elsewhere({of("busy").flow: 250.0}), [of("here").flow])
    queue = [One(number, of("busy")) for number in range(3)] + [One(10 + number, of("here")) for number in range(4)]
    assert [serve(shares, queue).claim.tenant for _ in range(4)] == ["here", "here", "here", "busy"]


def test_who_was_alone_elsewhere_owes_nothing_to_those_that_come_later() -> None:
    shares = Shares()
    for _ in range(100):
        shares.learn(Elsewhere({of("alone").flow: 1000.0}), [])
    queue = [One(number, of("alone", 1000)) for number in range(5)] + [One(10 + n, of("new", 1000)) for n in range(5)]
    assert Counter(serve(shares, queue).claim.tenant for _ in range(6)) == {"alone": 3, "new": 3}


def test_the_lead_over_a_tenant_that_waits_elsewhere_and_is_not_served_is_bounded() -> None:
    shares = Shares()
    stuck = Elsewhere(waiting=[of("stuck").flow])
    shares.learn(stuck, [])
    for _ in range(1000):
        shares.give(of("busy", 1000))
    queue = [One(number, of("busy", 1000)) for number in range(100)] + [
        One(200 + n, of("new", 1000)) for n in range(99)
    ]
    assert 60 <= [serve(shares, queue).claim.tenant for _ in range(70)].index("busy") <= 67


def test_a_free_slot_belongs_to_what_waits_elsewhere_if_it_is_behind_or_of_a_higher_band() -> None:
    shares = Shares()
    shares.learn(Elsewhere(waiting=[of("behind").flow]), [])
    for _ in range(3):
        shares.give(of("busy"))
    assert shares.is_preceded(of("busy"))
    assert not shares.is_preceded(of("busy", 400)), "a request more is no lead"
    assert not shares.is_preceded(of("behind"))
    assert not shares.is_preceded(of("busy", band=Band.HIGH))
    assert shares.is_preceded(of("behind", band=Band.LOW))
    shares.learn(Elsewhere(), [])
    assert not shares.is_preceded(of("busy"))

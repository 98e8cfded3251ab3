"""Use of tenants over several gateways."""

import json
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.spec.bands import Band
from gateway.core.dispatch.fairness import NOTHING_ELSEWHERE, Elsewhere, Flow, Shares, SlotClaim, WaitingCounts
from gateway.core.dispatch.shared_usage import FLOWS_MAX, REPORT_CHARACTERS_MAX, ROUNDS_KEPT, SharedUsage
from tests.unit.gateway.core.dispatch.test_fairness import One

MODEL = "demo"
ADA, BOB = Flow("ada", Band.NORMAL), Flow("bob", Band.LOW)


@dataclass
class Gateway:
    """A gateway as far as shares go. Its tenants always have requests that wait."""

    tenants: tuple[str, ...]
    shares: Shares = field(default_factory=Shares)
    usage: SharedUsage = field(default_factory=SharedUsage)
    counts: WaitingCounts = field(default_factory=WaitingCounts)

    def __post_init__(self) -> None:
        for tenant in self.tenants:
            self.counts.add(SlotClaim(tenant=tenant))

    def take(self, size: int, *, leaves: bool) -> SlotClaim | None:
        """Give a free slot to the next request; None: it is left to other gateways."""
        waiting = [One(number, SlotClaim(tenant=tenant, tokens=100)) for number, tenant in enumerate(self.tenants)]
        claim = self.shares.order(waiting)[0].claim
        if leaves and self.shares.is_preceded(claim):
            return None
        self.shares.give(claim)
        self.usage.used(MODEL, claim.flow, claim.cost)
        self.shares.settle(claim, size)
        self.usage.used(MODEL, claim.flow, size - claim.cost)
        return claim

    def exchange(self, reports: dict[str, str]) -> None:
        news = self.usage.learn(reports)
        self.shares.learn(news.get(MODEL, NOTHING_ELSEWHERE), self.counts.flows())
        self.usage.wait(MODEL, self.counts.flows())


def served(gateways: list[Gateway], slots: list[int], sizes: list[int], *, exchange_every: int) -> Counter[str]:
    """Return the tokens of each tenant. `slots` names the gateway that hears first of each slot that gets free."""
    tokens = Counter[str]()
    for turn in range(600):
        if exchange_every and turn % exchange_every == 0:
            reports = {str(number): gateway.usage.report() for number, gateway in enumerate(gateways)}
            for number, gateway in enumerate(gateways):
                gateway.exchange({name: text for name, text in reports.items() if name != str(number)})
        first, size = slots[turn % len(slots)] % len(gateways), sizes[turn % len(sizes)]
        order = [*gateways[first:], *gateways[:first]]
        claim = next((one for gateway in order if (one := gateway.take(size, leaves=True))), None)
        claim = claim or order[0].take(size, leaves=False)
        assert claim is not None
        tokens[claim.tenant] += size
    return tokens


@settings(max_examples=10)
@given(
    gateways=st.integers(2, 4),
    slots=st.lists(st.integers(0, 3), min_size=1, max_size=40),
    sizes=st.lists(st.integers(10, 1000), min_size=1, max_size=20),
)
def test_a_tenant_at_every_gateway_gets_as_many_tokens_as_one_at_a_single_gateway(
    gateways: int, slots: list[int], sizes: list[int]
) -> None:
    both = [Gateway(("wide", "narrow")), *(Gateway(("wide",)) for _ in range(gateways - 1))]
    tokens = served(both, slots, sizes, exchange_every=10)
    # What is given between two exchanges, and a claim.
    assert abs(tokens["wide"] - tokens["narrow"]) <= 12 * max(*sizes, 100)


def test_gateways_that_do_not_exchange_give_each_its_own_shares() -> None:
    tokens = served([Gateway(("wide", "narrow")), Gateway(("wide",))], [0, 1], [100], exchange_every=0)
    assert tokens["wide"] == 3 * tokens["narrow"]


def test_news_are_what_was_given_since_the_last_report_whatever_was_lost_between() -> None:
    usage, reader = SharedUsage(), SharedUsage()
    usage.used("m", ADA, 100.0)
    assert reader.learn({"g": usage.report()}) == {"m": Elsewhere()}, "what was before is not news"
    usage.used("m", ADA, 10.0)
    usage.report()  # lost
    usage.used("m", ADA, -3.0)
    usage.used("n", BOB, 5.0)
    usage.wait("m", [BOB])
    text = usage.report()
    assert reader.learn({"g": text}) == {"m": Elsewhere({ADA: 7.0}, {BOB}), "n": Elsewhere({BOB: 5.0})}
    assert reader.learn({"g": text, "h": usage.report()})["m"] == Elsewhere({}, {BOB})


def test_after_an_outage_nothing_that_was_missed_counts() -> None:
    usage, reader = SharedUsage(), SharedUsage()
    usage.used("m", ADA, 100.0)
    reader.learn({"g": usage.report()})
    assert reader.learn({}) == {}
    usage.used("m", ADA, 1000.0)
    assert reader.learn({"g": usage.report()}) == {"m": Elsewhere()}


def test_a_flow_without_news_leaves_the_reports_and_begins_anew() -> None:
    usage, reader = SharedUsage(), SharedUsage()
    usage.used("m", ADA, 100.0)
    for _ in range(ROUNDS_KEPT):
        assert reader.learn({"g": usage.report()})["m"].used == {}
    assert reader.learn({"g": usage.report()}) == {}
    usage.used("m", ADA, 30.0)
    assert reader.learn({"g": usage.report()})["m"].used == {ADA: 30.0}


def test_reports_are_bounded_in_flows_and_characters_and_the_newest_stay() -> None:
    usage = SharedUsage()
    for number in range(3000):
        usage.used("m", Flow(f"t{number}", Band.NORMAL), 1.0)
    rows = json.loads(usage.report())
    assert (len(rows), rows[0][1]) == (FLOWS_MAX, "t2999")
    for number in range(3000):
        usage.used("m", Flow(f"{number}" + "x" * 1000, Band.NORMAL), 1.0)
    text = usage.report()
    assert REPORT_CHARACTERS_MAX - 2000 < len(text) <= REPORT_CHARACTERS_MAX


@pytest.mark.parametrize(
    "text",
    ["", "{", "{}", "7", "null", "[7]", '[["m", "t", 9, 1, 0]]', '[["m", "t", 1, "x", 0]]', '[["m", "t", 1, NaN, 0]]'],
)
def test_a_report_that_cannot_be_read_is_none(text: str) -> None:
    assert SharedUsage().learn({"g": text}) == {}

"""Choice of the states that a full tier gives up."""

import random

from runner.core.states.budget import TierBudget


def budget(bytes_max: int = 100, tenant: int = 100) -> TierBudget:
    return TierBudget(bytes_max=bytes_max, tenant_bytes_max=tenant)


def test_the_fewest_seconds_per_byte_go_first() -> None:
    tier = budget()
    assert tier.add("dear", tenant="t", size_bytes=50, saved_s=50) == []
    assert tier.add("cheap", tenant="t", size_bytes=40, saved_s=1) == []
    assert tier.add("new", tenant="t", size_bytes=30, saved_s=30) == ["cheap"]


def test_a_dear_state_that_is_never_used_again_goes_in_the_end() -> None:
    tier = budget()
    tier.add("old", tenant="t", size_bytes=50, saved_s=500)
    gone: list[str] = []
    for number in range(100):
        gone += tier.add(f"new{number}", tenant="t", size_bytes=50, saved_s=50) or []
        tier.use(f"new{number}")
    assert "old" in gone


def test_a_tenant_makes_room_within_its_part() -> None:
    tier = budget(tenant=60)
    tier.add("a1", tenant="a", size_bytes=40, saved_s=1)
    tier.add("b1", tenant="b", size_bytes=40, saved_s=0.001)
    assert tier.add("a2", tenant="a", size_bytes=40, saved_s=1) == ["a1"]
    assert "b1" in tier


def test_a_state_larger_than_a_tenants_part_changes_nothing() -> None:
    tier = budget(tenant=60)
    tier.add("a", tenant="t", size_bytes=60, saved_s=1)
    assert tier.add("large", tenant="u", size_bytes=61, saved_s=1000) is None
    assert (tier.bytes_used, len(tier)) == (60, 1)


def test_the_bounds_hold_over_random_use() -> None:
    draw, tier = random.Random(1), budget(1000, 600)
    kept: dict[str, tuple[str, int]] = {}
    for number in range(2000):
        key, tenant, size = f"{number % 60}", draw.choice("abc"), draw.randint(1, 300)
        gone = tier.add(key, tenant=tenant, size_bytes=size, saved_s=draw.random())
        assert gone is not None
        kept[key] = (tenant, size)
        for other in gone:
            del kept[other]
        assert tier.bytes_used == sum(size for _, size in kept.values()) <= 1000
        assert all(sum(size for one, size in kept.values() if one == tenant) <= 600 for tenant in "abc")


def test_what_goes_next_is_named_until_one_more_state_has_room() -> None:
    tier = budget(tenant=60)
    for name, tenant in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        tier.add(name, tenant=tenant, size_bytes=20, saved_s=20)
    assert list(tier.next_out(10)) == []  # the tier has room for 40 more, and each part for 20
    assert list(tier.next_out(25)) == ["a1"]
    assert list(tier.next_out(60)) == ["a1", "a2", "b1"]
    tier.use("a1")
    assert list(tier.next_out(25)) == ["a2"]
    tier.add("b2", tenant="b", size_bytes=40, saved_s=0.04)
    assert list(tier.next_out(0)) == ["b2", "a2"]  # room for the largest, also in the part of its tenant

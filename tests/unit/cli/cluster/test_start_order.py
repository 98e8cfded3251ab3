import pytest

from cli.cluster.service import plan_start_waves

NOTHING: frozenset[str] = frozenset()


def test_what_a_service_needs_starts_in_an_earlier_wave() -> None:
    needs = {
        "gateway": frozenset({"scheduler"}),
        "scheduler": frozenset({"redis", "discovery"}),
        "discovery": NOTHING,
        "redis": NOTHING,
    }

    assert plan_start_waves(needs) == (("discovery", "redis"), ("scheduler",), ("gateway",))


def test_services_that_need_nothing_start_at_once() -> None:
    assert plan_start_waves({"a": NOTHING, "b": NOTHING}) == (("a", "b"),)


def test_nothing_to_start_is_no_wave() -> None:
    assert plan_start_waves({}) == ()


def test_services_that_need_each_other_are_a_mistake() -> None:
    with pytest.raises(AssertionError, match=r"need each other: \['a', 'b'\]"):
        plan_start_waves({"a": frozenset({"b"}), "b": frozenset({"a"})})


def test_needing_what_nobody_plans_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match=r"not planned: \['b'\]"):
        plan_start_waves({"a": frozenset({"b"})})

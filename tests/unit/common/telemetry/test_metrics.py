"""Gauges that are read when the page is asked for."""

from collections.abc import Iterator

import pytest
from prometheus_client import REGISTRY, generate_latest

from common.telemetry.metrics import Family, Sample, ScrapedGauges

AGE = Family("puna_test_age_seconds", "Age of something", ("of",))


@pytest.fixture
def gauges() -> Iterator[ScrapedGauges]:
    made = ScrapedGauges((AGE,))
    yield made
    REGISTRY.unregister(made)


def lines() -> list[str]:
    page = generate_latest().decode()
    return [line for line in page.splitlines() if "puna_test_age" in line]


def test_without_a_source_only_the_name_is_shown(gauges: ScrapedGauges) -> None:
    assert all(line.startswith("#") for line in lines())


def test_values_are_those_of_the_moment(gauges: ScrapedGauges) -> None:
    ages = [1.0]
    gauges.read_from(lambda: [Sample(AGE, ages[0], ("route",))])
    assert 'puna_test_age_seconds{of="route"} 1.0' in lines()
    ages[0] = 2.0
    assert 'puna_test_age_seconds{of="route"} 2.0' in lines()


def test_what_changes_while_it_is_read_is_read_again(gauges: ScrapedGauges) -> None:
    tries = []

    def read() -> list[Sample]:
        tries.append(1)
        if len(tries) < 3:
            raise RuntimeError("dictionary changed size during iteration")
        return [Sample(AGE, 7.0, ("x",))]

    gauges.read_from(read)
    assert 'puna_test_age_seconds{of="x"} 7.0' in lines()
    assert len(tries) == 3

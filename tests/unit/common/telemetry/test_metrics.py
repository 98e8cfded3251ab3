"""Gauges that are read when the page is asked for."""

from collections.abc import Iterator

import pytest
from prometheus_client import REGISTRY, generate_latest

from common.telemetry.device_metrics import DeviceRow
from common.telemetry.metrics import Family, Sample, ScrapedGauges
from discovery.metrics import DEVICES
from protos import cluster_pb2

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


def test_a_card_has_a_series_for_every_kind_of_error_from_the_start_and_other_devices_have_none() -> None:
    vitals = cluster_pb2.DeviceVitals(power_w=70, throttled=["thermal"], ecc_uncorrected=0, xids_hardware=2)
    rows = [DeviceRow(("n", "gpu"), cluster_pb2.Device(vitals=vitals)), DeviceRow(("n", "cpu"), cluster_pb2.Device())]
    samples = {
        (one.family.name.removeprefix("puna_discovery_device_"), one.labels): one.value for one in DEVICES.samples(rows)
    }
    assert samples["errors", ("n", "gpu", "xid_hardware")] == 2
    assert samples["errors", ("n", "gpu", "xid_application")] == samples["errors", ("n", "gpu", "ecc_uncorrected")] == 0
    assert (samples["throttled", ("n", "gpu", "thermal")], samples["throttled", ("n", "gpu", "power")]) == (1, 0)
    assert samples["power_watts", ("n", "gpu")] == 70
    assert {name for name, labels in samples if labels[1] == "cpu"} == {
        *("total_bytes", "free_bytes", "free_age_seconds", "state", "speed_bytes_per_second")
    }
    assert ("temperature_celsius", ("n", "gpu")) not in samples

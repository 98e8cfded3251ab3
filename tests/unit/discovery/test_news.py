"""What watchers hear at once, and what may wait a moment."""

import pytest

from discovery.core.membership import Section
from discovery.news import FREE_BYTES_MOVED, is_news
from protos import cluster_pb2, discovery_pb2

FREE = 8 * 1024**3


def devices(*, free: int = FREE, age_ms: int = 10, lost: bool = False) -> discovery_pb2.DeviceList:
    state = cluster_pb2.DEVICE_STATE_LOST if lost else cluster_pb2.DEVICE_STATE_OK
    return discovery_pb2.DeviceList(
        devices=[cluster_pb2.Device(id="GPU-1", free_bytes=free, free_age_ms=age_ms, state=state)]
    )


def runners(*, idle_ms: int = 5, busy: int = 0) -> discovery_pb2.RunnerList:
    status = cluster_pb2.RunnerStatus(idle_ms=idle_ms, slots_busy=busy)
    return discovery_pb2.RunnerList(runners=[cluster_pb2.RunnerRecord(address="unix:/r", status=status)])


BEFORE = {
    Section.FACTS: discovery_pb2.HostFacts(address="h:1"),
    Section.DEVICES: devices(),
    Section.RUNNERS: runners(),
}


@pytest.mark.parametrize(
    ("section", "content", "news"),
    [
        (Section.DEVICES, devices(age_ms=900), False),
        (Section.DEVICES, devices(free=FREE - FREE_BYTES_MOVED), False),
        (Section.DEVICES, devices(free=FREE - FREE_BYTES_MOVED - 1), True),
        (Section.DEVICES, devices(lost=True), True),
        (Section.DEVICES, discovery_pb2.DeviceList(), True),
        (Section.RUNNERS, runners(idle_ms=4000), False),
        (Section.RUNNERS, runners(busy=1), True),
        (Section.RUNNERS, discovery_pb2.RunnerList(), True),
        (Section.FACTS, discovery_pb2.HostFacts(address="h:1"), False),
        (Section.FACTS, discovery_pb2.HostFacts(address="h:2"), True),
    ],
)
def test_ages_and_small_movements_are_no_news(section: Section, content: object, news: bool) -> None:
    assert is_news(BEFORE, {section: content}) is news


def test_whoever_was_not_there_is_news_and_an_empty_report_is_none() -> None:
    assert is_news(None, {})
    assert not is_news(BEFORE, {})

"""News for watchers at once, and changes that may wait a moment."""

import pytest

from discovery.core.membership import NodeSection
from discovery.registry import FREE_BYTES_MOVED, is_news
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
    NodeSection.FACTS: discovery_pb2.HostFacts(address="h:1"),
    NodeSection.DEVICES: devices(),
    NodeSection.RUNNERS: runners(),
}


@pytest.mark.parametrize(
    ("section", "content", "news"),
    [
        (NodeSection.DEVICES, devices(age_ms=900), False),
        (NodeSection.DEVICES, devices(free=FREE - FREE_BYTES_MOVED), False),
        (NodeSection.DEVICES, devices(free=FREE - FREE_BYTES_MOVED - 1), True),
        (NodeSection.DEVICES, devices(lost=True), True),
        (NodeSection.DEVICES, discovery_pb2.DeviceList(), True),
        (NodeSection.RUNNERS, runners(idle_ms=4000), False),
        (NodeSection.RUNNERS, runners(busy=1), True),
        (NodeSection.RUNNERS, discovery_pb2.RunnerList(), True),
        (NodeSection.FACTS, discovery_pb2.HostFacts(address="h:1"), False),
        (NodeSection.FACTS, discovery_pb2.HostFacts(address="h:2"), True),
    ],
)
def test_ages_and_small_movements_are_no_news(section: NodeSection, content: object, news: bool) -> None:
    assert is_news(BEFORE, {section: content}) is news


def test_whoever_was_not_there_is_news_and_an_empty_report_is_none() -> None:
    assert is_news(None, {})
    assert not is_news(BEFORE, {})

"""Selection of news that watchers need at once. Ages and idle times change with every report, and can wait.

With a hundred hosts a report comes every ten milliseconds. If each of them were sent at once, an idle cluster would do
nothing but send the ages of its figures.
"""

from collections.abc import Mapping

from discovery.core.membership import NodeSection
from protos import discovery_pb2

FREE_BYTES_MOVED = 16 * 1024**2  # hosts report such a change at once, too


def is_news(before: Mapping[NodeSection, object] | None, report: Mapping[NodeSection, object]) -> bool:
    """Return True if a report differs in more than ages; `before` is the node's last report, None at the first."""
    return before is None or any(not _is_alike(before.get(section), content) for section, content in report.items())


def _is_alike(before: object, now: object) -> bool:
    if isinstance(before, discovery_pb2.DeviceList) and isinstance(now, discovery_pb2.DeviceList):
        return _devices_alike(before, now)
    if isinstance(before, discovery_pb2.RunnerList) and isinstance(now, discovery_pb2.RunnerList):
        return _without_idle_times(before) == _without_idle_times(now)
    return before == now


def _devices_alike(before: discovery_pb2.DeviceList, now: discovery_pb2.DeviceList) -> bool:
    if len(before.devices) != len(now.devices):
        return False
    moved = (abs(one.free_bytes - other.free_bytes) for one, other in zip(before.devices, now.devices, strict=True))
    return max(moved, default=0) <= FREE_BYTES_MOVED and _without_figures(before) == _without_figures(now)


def _without_figures(devices: discovery_pb2.DeviceList) -> discovery_pb2.DeviceList:
    lasting = discovery_pb2.DeviceList()
    lasting.CopyFrom(devices)
    for device in lasting.devices:
        device.free_bytes = device.free_age_ms = 0
    return lasting


def _without_idle_times(runners: discovery_pb2.RunnerList) -> discovery_pb2.RunnerList:
    lasting = discovery_pb2.RunnerList()
    lasting.CopyFrom(runners)
    for runner in lasting.runners:
        runner.status.idle_ms = 0
    return lasting

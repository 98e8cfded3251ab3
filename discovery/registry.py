"""The one owner of the membership: feeds it events and notifies watchers.

Ages and idle times change with every report, and can wait: with a hundred hosts a report comes every ten milliseconds.
If each of them were sent at once, an idle cluster would do nothing but send the ages of its figures.
"""

import asyncio
from collections.abc import Iterable, Mapping

from common.changes import Changes
from common.clock import Clock
from common.telemetry.logs import get_logger
from discovery import metrics
from discovery.core import membership as core
from discovery.core.membership import Membership, NodeSection, Report
from protos import discovery_pb2

log = get_logger()

# Two reports at the interval that hosts are asked for.
SILENCE_S_MAX = 2.0
FREE_BYTES_MOVED = 16 * 1024**2  # hosts report such a change at once, too


class NodeRegistry:
    """Membership plus the clock. All methods run on the event loop, none waits while it changes state."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.started_at_s = clock.now_s()
        self.membership = Membership()
        self.changes = Changes()
        self.news = Changes()  # those of them that watchers must hear at once
        self.metrics_address = ""
        self._streams = 0

    def new_stream(self) -> int:
        """Return a number for a registration stream; later ones are higher."""
        self._streams += 1
        return self._streams

    def report(self, report: Report) -> None:
        """Take in a report. Raises what `apply_report` raises."""
        known = self.membership.nodes.get(report.node_id)
        goes_on = known is not None and known.stream == report.stream and not known.suspect
        before = known.sections if known is not None and goes_on else None
        self._set(
            core.apply_report(self.membership, report, now_s=self._clock.now_s()),
            news=is_news(before, report.sections),
        )
        if known is None or known.stream != report.stream:
            log.info("node.registered", node=report.node_id, incarnation=report.incarnation, again=known is not None)

    def disconnect(self, node_id: str, stream: int) -> None:
        """Handle a broken stream: the node leaves the inventory if it was its present one."""
        after = core.apply_disconnect(self.membership, node_id=node_id, stream=stream)
        if after is not self.membership:
            log.info("node.left", node=node_id)
        self._set(after)

    def remove(self, node_ids: Iterable[str]) -> None:
        """Take nodes out of the inventory, and have watchers hear which nodes are removed."""
        for node_id in node_ids:
            if (known := self.membership.nodes.get(node_id)) is not None:
                self.disconnect(node_id, known.stream)
        self.changes.notify()
        self.news.notify()

    async def watch_silence(self) -> None:
        """Mark silent nodes as suspect when their time is up; runs for ever."""
        while True:
            due_s = core.next_check_s(self.membership, silence_s_max=SILENCE_S_MAX)
            now_s = self._clock.now_s()
            wait_s = SILENCE_S_MAX if due_s is None else max(0.0, due_s - now_s) + 0.01
            await asyncio.sleep(wait_s)
            before = self.membership
            self._set(core.apply_time(before, now_s=self._clock.now_s(), silence_s_max=SILENCE_S_MAX))
            for node in self.membership.nodes.values():
                if node.suspect and not before.nodes[node.node_id].suspect:
                    log.warning("node.suspect", node=node.node_id, silence_s=SILENCE_S_MAX)

    def _set(self, membership: Membership, *, news: bool = True) -> None:
        visible = membership.version != self.membership.version
        self.membership = membership
        if not visible:
            return
        suspects = sum(node.suspect for node in membership.nodes.values())
        metrics.NODES.labels(state="ok").set(len(membership.nodes) - suspects)
        metrics.NODES.labels(state="suspect").set(suspects)
        metrics.VERSION.set(membership.version)
        self.changes.notify()
        if news:
            self.news.notify()


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
        device.ClearField("vitals")
    return lasting


def _without_idle_times(runners: discovery_pb2.RunnerList) -> discovery_pb2.RunnerList:
    lasting = discovery_pb2.RunnerList()
    lasting.CopyFrom(runners)
    for runner in lasting.runners:
        runner.status.idle_ms = 0
    return lasting

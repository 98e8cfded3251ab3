"""What compute graphs take, as far as it was seen. A graph depends on the whole layout: this is a guess.

A graph is smaller with fewer devices, larger beside the output, and comes and goes with the layers. Trials are planned
with the smallest that was seen for as many devices, the output's part taken apart: it goes with the output.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum

from scheduler.core.memory import MemoryReport
from scheduler.core.splitting import DeviceKey


class Hope(Enum):
    """How small graphs may be in a layout that nobody has measured, the best founded first."""

    LIKE_THIS = "like this"  # as in layouts of as many devices
    EVER = "ever"  # as in any layout
    SMALLER = "smaller"  # half of that: what comes and goes with the layers was there each time
    NONE = "none"  # the devices take nothing else


@dataclass(frozen=True, slots=True)
class _Seen:
    """The graph of one device in one measured layout."""

    key: DeviceKey
    graph_bytes: int  # with the projector
    beside_output: bool
    layout: tuple[bool, int]  # whether the output lay on a device, and how many devices there were


@dataclass(slots=True)
class Graphs:
    """Of one run of the loop."""

    last: dict[DeviceKey, int] = field(default_factory=dict)  # a device that was left out keeps what it had
    host_bytes: int = 0
    device_count: int = 0  # of the last layout
    _seen: list[_Seen] = field(default_factory=list)
    _output_diffs: list[int] = field(default_factory=list)  # by how much more the device with the output took

    def take(self, report: MemoryReport, node_id: str) -> None:
        """Take in a measured layout; `node_id` is the runner's."""
        holders = [bool(part.layer_weights_bytes and part.layer_weights_bytes[-1]) for part in report.devices]
        layout = any(holders), len(report.devices)
        graphs = [part.graph_bytes + part.projector_bytes for part in report.devices]
        for part, graph, holds in zip(report.devices, graphs, holders, strict=True):
            key = (part.node_id or node_id, part.device_id)
            self.last[key] = graph
            self._seen.append(_Seen(key, graph, holds, layout))
        others = [graph for graph, holds in zip(graphs, holders, strict=True) if not holds]
        if others and any(holders):
            self._output_diffs.append(max(0, graphs[holders.index(True)] - max(others)))
        self.device_count = sum(1 for part in report.devices if part.graph_bytes)
        self.host_bytes = report.host.graph_bytes

    @property
    def output_bytes(self) -> int:
        """The least that the output adds to the graph of its device."""
        alone = {seen.key: seen.graph_bytes for seen in self._seen if seen.layout == (False, 1)}
        diffs = [
            max(0, seen.graph_bytes - alone[seen.key])
            for seen in self._seen
            if seen.layout == (True, 1) and seen.key in alone
        ]
        return min([*self._output_diffs, *diffs], default=0)

    def least(self, keys: Collection[DeviceKey], *, output: bool, count: int, hope: Hope) -> Mapping[DeviceKey, int]:
        """What graphs may take in a layout of `count` devices, without what the output adds.

        What was never seen is guessed: from the device in other layouts, then from other devices.
        """
        if hope is Hope.NONE:
            return dict.fromkeys(keys, 0)
        extra = self.output_bytes
        same: dict[DeviceKey, int] = {}
        ever: dict[DeviceKey, int] = {}
        for seen in self._seen:
            graph = max(0, seen.graph_bytes - (extra if seen.beside_output else 0))
            ever[seen.key] = min(graph, ever.get(seen.key, graph))
            if seen.layout == (output, count):
                same[seen.key] = min(graph, same.get(seen.key, graph))
        usual = min(ever.values(), default=0)
        if hope is Hope.LIKE_THIS:
            ever |= same
            usual = min(same.values(), default=usual)
        known = {key: ever.get(key, usual) for key in keys}
        return {key: graph // 2 for key, graph in known.items()} if hope is Hope.SMALLER else known

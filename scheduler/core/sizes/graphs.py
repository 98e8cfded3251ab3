"""Graphs of measured layouts, and from them bounds for a layout without measurement. A guess.

A graph depends on the whole layout: on how many devices there are, how many layers they take, and on the output, whose
device takes more. In another layout with the same three, the graph of a device is what it was there. Else it may be as
small as it was ever seen, or smaller: what comes and goes with the layers may have been there each time.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from common.spec.layout import Layout
from scheduler.core.sizes.splitting import DeviceKey
from scheduler.core.values.memory import MemoryReport


@dataclass(slots=True)
class Graphs:
    """Compute graphs of the last layout in a run of the loop, by device: the input of the next plan."""

    last: dict[DeviceKey, int] = field(default_factory=dict)  # a device that was left out keeps what it had
    host_bytes: int = 0
    device_count: int = 0  # of the last layout

    def take(self, report: MemoryReport, node_id: str) -> None:
        """Take in a measured layout; `node_id` is the runner's."""
        for part in report.devices:
            self.last[part.node_id or node_id, part.device_id] = part.graph_bytes + part.projector_bytes
        self.device_count = sum(1 for part in report.devices if part.graph_bytes)
        self.host_bytes = report.host.graph_bytes


class Bound(Enum):
    """Lower bound for a layout that was not measured, the best founded first."""

    LIKE_THIS = "like this"  # as in layouts of as many devices, with or without the output
    EVER = "ever"  # as in any layout
    SMALLER = "smaller"  # half of that
    NONE = "none"  # the devices take nothing else


@dataclass(frozen=True, slots=True)
class GraphKind:
    """Values that graphs depend on."""

    devices: int
    taken: int  # layers on devices; the output counts as one
    output: bool  # whether it is among them


@dataclass(frozen=True, slots=True)
class Guess:
    """Guess of the bytes that devices need beside their layers."""

    graphs: Mapping[DeviceKey, int]
    output_bytes: Mapping[DeviceKey, int]  # how much more that is if the output lies there
    projector_bytes: int = 0  # on the first device


_Graphs = dict[DeviceKey, int]


class GraphBounds:
    """Over measured layouts; `node_id` is the runner's."""

    def __init__(self, reports: Mapping[Layout, MemoryReport], node_id: str) -> None:
        self._plain: dict[GraphKind, _Graphs] = {}  # the least that was seen on a device without the output
        self._ends: dict[GraphKind, _Graphs] = {}  # and with it
        self._diffs: dict[GraphKind, list[int]] = {}  # by how much more the device with the output took than all others
        self._projector_bytes = 0
        for layout, report in reports.items():
            if report.devices and len(report.devices) == len(layout.devices):
                self._take(kind_of(layout), report, node_id)
        self._output_bytes = min(self._all_diffs(), default=0)
        self._ever = self._least_of(self._plain.keys() | self._ends.keys())

    def _take(self, kind: GraphKind, report: MemoryReport, node_id: str) -> None:
        graphs = {(part.node_id or node_id, part.device_id): part.graph_bytes for part in report.devices}
        self._projector_bytes = max(self._projector_bytes, *(part.projector_bytes for part in report.devices))
        if kind.output:
            last, graph = graphs.popitem()
            ends = self._ends.setdefault(kind, {})
            ends[last] = min(graph, ends.get(last, graph))
            if graphs:
                self._diffs.setdefault(kind, []).append(max(0, graph - max(graphs.values())))
        plain = self._plain.setdefault(kind, {})
        for key, graph in graphs.items():
            plain[key] = min(graph, plain.get(key, graph))

    def guess(self, kind: GraphKind, keys: Collection[DeviceKey], bound: Bound) -> Guess:
        """Return bytes beside the layers in a layout of this kind: measured ones, else guesses by the bound."""
        plain, ends = self._plain.get(kind, {}), self._ends.get(kind, {})
        more = self._more(kind, bound)
        least = self._unmeasured(kind, more, bound)
        usual = min(least.values(), default=0)
        graphs, extra = _Graphs(), _Graphs()
        for key in keys:
            graph = plain.get(key)
            if graph is None:
                graph = least.get(key, usual)
                graph = min(graph, ends.get(key, graph))
            graphs[key] = graph
            extra[key] = ends[key] - graph if key in ends else more
        return Guess(graphs=graphs, output_bytes=extra, projector_bytes=self._projector_bytes)

    def _more(self, kind: GraphKind, bound: Bound) -> int:
        """Return the bytes that the output adds."""
        match bound:
            case Bound.NONE:
                return 0
            case Bound.SMALLER:
                return self._output_bytes // 2
            case Bound.LIKE_THIS:
                return min(self._apart(kind), default=self._output_bytes)
            case Bound.EVER:
                return self._output_bytes

    def _unmeasured(self, kind: GraphKind, more: int, bound: Bound) -> _Graphs:
        """Return guesses for devices without a measurement of this kind; a missing one is as the least of these."""
        if bound is Bound.NONE:
            return {}
        if bound is Bound.LIKE_THIS and kind in self._plain:
            return self._with_ends(kind, more)
        least = self._ever
        if bound is Bound.SMALLER:
            least = {key: graph // 2 for key, graph in least.items()}
        if bound is Bound.LIKE_THIS:
            alike = [one for one in self._plain if (one.devices, one.output) == (kind.devices, kind.output)]
            least = self._least_of(alike) or least
        # The same layers on more devices: no graph is smaller.
        fewer = [
            one
            for one in self._plain
            if one.devices < kind.devices and (one.taken, one.output) == (kind.taken, kind.output)
        ]
        return least | {key: max(graph, least.get(key, 0)) for key, graph in self._least_of(fewer).items()}

    def _with_ends(self, kind: GraphKind, more: int) -> _Graphs:
        ends = {key: max(0, graph - more) for key, graph in self._ends.get(kind, {}).items()}
        return ends | self._plain.get(kind, {})

    def _least_of(self, kinds: Iterable[GraphKind]) -> _Graphs:
        found = _Graphs()
        for kind in kinds:
            for key, graph in self._with_ends(kind, min(self._apart(kind), default=self._output_bytes)).items():
                found[key] = min(graph, found.get(key, graph))
        return found

    def _apart(self, kind: GraphKind) -> list[int]:
        """Return the bytes that the output adds in such layouts, per device with and without it, else beside."""
        plain = self._plain.get(kind, {})
        same = [max(0, graph - plain[key]) for key, graph in self._ends.get(kind, {}).items() if key in plain]
        return same or self._diffs.get(kind, [])

    def _all_diffs(self) -> list[int]:
        """Return the bytes of the output in any layout, or on a device alone in two."""
        diffs = [diff for kind in self._plain for diff in self._apart(kind)]
        alone = {key: graph for kind, seen in self._plain.items() if kind.devices == 1 for key, graph in seen.items()}
        for kind, seen in self._ends.items():
            if kind.devices == 1:
                diffs += [max(0, graph - alone[key]) for key, graph in seen.items() if key in alone]
        return diffs


def kind_of(layout: Layout) -> GraphKind:
    """Return the values that the graphs of a layout depend on."""
    taken = sum(part.layer_count for part in layout.devices)
    return GraphKind(devices=len(layout.devices), taken=taken, output=taken > 0 and not layout.output_on_host)

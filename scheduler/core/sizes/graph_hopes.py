"""How small graphs may be in a layout that nobody has measured, by those that were. A guess.

A graph depends on the whole layout: on how many devices there are, how many layers they take, and on the output, whose
device takes more. In another layout with the same three, the graph of a device is what it was there. Else it may be as
small as it was ever seen, or smaller: what comes and goes with the layers may have been there each time.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from scheduler.core.sizes.splitting import DeviceKey
from scheduler.core.values.layouts import Layout
from scheduler.core.values.memory import MemoryReport


class Hope(Enum):
    """What is hoped for where nothing was measured, the best founded first."""

    LIKE_THIS = "like this"  # as in layouts of as many devices, with or without the output
    EVER = "ever"  # as in any layout
    SMALLER = "smaller"  # half of that
    NONE = "none"  # the devices take nothing else


@dataclass(frozen=True, slots=True)
class Kind:
    """What graphs depend on."""

    devices: int
    taken: int  # layers on devices; the output counts as one
    output: bool  # whether it is among them


@dataclass(frozen=True, slots=True)
class Guess:
    """What devices take beside their layers."""

    graphs: Mapping[DeviceKey, int]
    output_bytes: Mapping[DeviceKey, int]  # how much more that is if the output lies there
    projector_bytes: int = 0  # on the first device


_Graphs = dict[DeviceKey, int]


class GraphHopes:
    """Over measured layouts; `node_id` is the runner's."""

    def __init__(self, reports: Mapping[Layout, MemoryReport], node_id: str) -> None:
        self._plain: dict[Kind, _Graphs] = {}  # the least that was seen on a device without the output
        self._ends: dict[Kind, _Graphs] = {}  # and with it
        self._diffs: dict[Kind, list[int]] = {}  # by how much more the device with the output took than all others
        self._projector_bytes = 0
        for layout, report in reports.items():
            if report.devices and len(report.devices) == len(layout.devices):
                self._take(kind_of(layout), report, node_id)
        self._output_bytes = min(self._all_diffs(), default=0)
        self._ever = self._least_of(self._plain.keys() | self._ends.keys())

    def _take(self, kind: Kind, report: MemoryReport, node_id: str) -> None:
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

    def guess(self, kind: Kind, keys: Collection[DeviceKey], hope: Hope) -> Guess:
        """For a layout of this kind. What was measured in such a layout is no guess."""
        plain, ends = self._plain.get(kind, {}), self._ends.get(kind, {})
        more = self._more(kind, hope)
        hoped = self._hoped(kind, more, hope)
        usual = min(hoped.values(), default=0)
        graphs, extra = _Graphs(), _Graphs()
        for key in keys:
            graph = plain.get(key)
            if graph is None:
                graph = hoped.get(key, usual)
                graph = min(graph, ends.get(key, graph))
            graphs[key] = graph
            extra[key] = ends[key] - graph if key in ends else more
        return Guess(graphs=graphs, output_bytes=extra, projector_bytes=self._projector_bytes)

    def _more(self, kind: Kind, hope: Hope) -> int:
        """What the output adds."""
        match hope:
            case Hope.NONE:
                return 0
            case Hope.SMALLER:
                return self._output_bytes // 2
            case Hope.LIKE_THIS:
                return min(self._apart(kind), default=self._output_bytes)
            case Hope.EVER:
                return self._output_bytes

    def _hoped(self, kind: Kind, more: int, hope: Hope) -> _Graphs:
        """For devices that were not measured in such a layout; what misses here is as the least of these."""
        if hope is Hope.NONE:
            return {}
        if hope is Hope.LIKE_THIS and kind in self._plain:
            return self._with_ends(kind, more)
        hoped = self._ever
        if hope is Hope.SMALLER:
            hoped = {key: graph // 2 for key, graph in hoped.items()}
        if hope is Hope.LIKE_THIS:
            alike = [one for one in self._plain if (one.devices, one.output) == (kind.devices, kind.output)]
            hoped = self._least_of(alike) or hoped
        # The same layers on more devices: no graph is smaller.
        fewer = [
            one
            for one in self._plain
            if one.devices < kind.devices and (one.taken, one.output) == (kind.taken, kind.output)
        ]
        return hoped | {key: max(graph, hoped.get(key, 0)) for key, graph in self._least_of(fewer).items()}

    def _with_ends(self, kind: Kind, more: int) -> _Graphs:
        ends = {key: max(0, graph - more) for key, graph in self._ends.get(kind, {}).items()}
        return ends | self._plain.get(kind, {})

    def _least_of(self, kinds: Iterable[Kind]) -> _Graphs:
        found = _Graphs()
        for kind in kinds:
            for key, graph in self._with_ends(kind, min(self._apart(kind), default=self._output_bytes)).items():
                found[key] = min(graph, found.get(key, graph))
        return found

    def _apart(self, kind: Kind) -> list[int]:
        """What the output adds in layouts of this kind: on a device with and without it, else beside the others."""
        plain = self._plain.get(kind, {})
        same = [max(0, graph - plain[key]) for key, graph in self._ends.get(kind, {}).items() if key in plain]
        return same or self._diffs.get(kind, [])

    def _all_diffs(self) -> list[int]:
        """In any layout, or to a device alone in two."""
        diffs = [diff for kind in self._plain for diff in self._apart(kind)]
        alone = {key: graph for kind, seen in self._plain.items() if kind.devices == 1 for key, graph in seen.items()}
        for kind, seen in self._ends.items():
            if kind.devices == 1:
                diffs += [max(0, graph - alone[key]) for key, graph in seen.items() if key in alone]
        return diffs


def kind_of(layout: Layout) -> Kind:
    """What the graphs of a layout depend on."""
    taken = sum(part.layer_count for part in layout.devices)
    return Kind(devices=len(layout.devices), taken=taken, output=taken > 0 and not layout.output_on_host)

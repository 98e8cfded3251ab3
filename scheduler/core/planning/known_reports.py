"""Known sizes of a model: reports by layout, sizes of layers from any of them, estimates where there is none."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from common import errors
from common.spec.layout import Layout
from scheduler.core.planning.candidates import MeasureKey, Reports
from scheduler.core.planning.device_sets import DeviceSet
from scheduler.core.sizes.estimate import cache_bytes, estimate_report, graph_bytes, sizes_by_facts, sizes_by_larger
from scheduler.core.sizes.layers import LayerSizes, sizes_by_report
from scheduler.core.values.facts import ModelFacts, facts_of_size
from scheduler.core.values.faults import Fault
from scheduler.core.values.memory import MIB, DeviceBytes, MemoryOrigin, MemoryReport
from scheduler.core.values.policy import Policy
from scheduler.core.values.view import NodeView

BAD_FILE = errors.BadModelFile.reason
PROJECTOR_GRAPH_BYTES = 512 * MIB  # of a projector that was never measured, for its largest image
# Counting would fail again, and an estimate would only put off the failure.
FINAL_FAULTS = frozenset({BAD_FILE, errors.InvalidRequest.reason, errors.ModelNotFound.reason})


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A report and the layout that it belongs to, without its devices."""

    layout: Layout
    report: MemoryReport
    device_layers: int

    @property
    def cells(self) -> int:
        """Return the cells of the cache."""
        return self.layout.context_tokens * self.layout.slots

    @property
    def on_devices_bytes(self) -> tuple[int, int]:
        """Return the bytes of weights and of the cache."""
        devices = self.report.devices
        return sum(part.weights_bytes for part in devices), sum(part.cache_bytes for part in devices)


@dataclass(slots=True)
class KnownReports:
    """Cache of one model's reports; it changes no answer.

    With `bounds` nothing is measured any more: what was counted with larger values bounds what smaller ones take,
    and is as little in doubt as a count.
    """

    digest: str
    reports: Reports
    policy: Policy
    bounds: bool = False
    _by_build: dict[str, list[Known]] | None = None
    _by_values: dict[tuple[str, Layout], Known] = field(default_factory=dict)  # of each, the one with most on devices
    _facts: dict[str, ModelFacts] = field(default_factory=dict)
    _least: dict[tuple[str, int], int] = field(default_factory=dict)
    _blocks: dict[str, int] = field(default_factory=dict)

    def report(self, device_set: DeviceSet, layout: Layout) -> MemoryReport | Fault | None:
        """Return a layout's report, measured or (if nothing can be measured) estimated; None: measure it first."""
        if not self.policy.measure:
            return self.estimate(device_set, layout)
        known = self.reports.get(measure_key(self.digest, device_set, layout))
        if isinstance(known, MemoryReport):
            return _named_as(known, layout)
        if isinstance(known, Fault) and known.reason not in FINAL_FAULTS:
            return self.estimate(device_set, layout)
        return known

    def estimate(self, device_set: DeviceSet, layout: Layout) -> MemoryReport:
        """Estimate by formula; layers and graph as measured in another layout of the same values, if there is one."""
        known = self._same_values(device_set, layout) or self._larger_values(device_set, layout)
        if known is None:
            graph = graph_bytes(self.facts(device_set.node), layout)
            projector = self._projector_bytes(device_set, layout) + _draft_bytes(device_set.node, layout)
        else:
            parts = (*known.report.devices, known.report.host)
            graph = max(part.graph_bytes for part in parts)
            projector = sum(part.projector_bytes for part in parts)
        found = estimate_report(self.sizes(device_set, layout), graph, layout, projector_bytes=projector)
        return found if known is None or not self.bounds else replace(found, origin=MemoryOrigin.MEASURED)

    def least_report(self, device_set: DeviceSet, layout: Layout) -> MemoryReport:
        """Return the least that a layout takes by the header: for sizes that can be counted in a moment."""
        report, file = self.estimate(device_set, layout), device_set.node.model(self.digest)
        no_header = file is None or file.facts is None
        devices = tuple(_without_guesses(part, caches=no_header) for part in report.devices)
        return replace(report, devices=devices, host=_without_guesses(report.host, caches=no_header))

    def _projector_bytes(self, device_set: DeviceSet, layout: Layout) -> int:
        file = device_set.node.model(self.digest)
        if not layout.projector_digest or file is None:
            return 0
        return file.projector_size_bytes + PROJECTOR_GRAPH_BYTES

    def sizes(self, device_set: DeviceSet, base: Layout) -> LayerSizes:
        """Return the sizes of every layer: as measured in any layout of these values, else by the header."""
        facts = self.facts(device_set.node)
        if (known := self._same_values(device_set, base)) is not None:
            return sizes_by_report(known.report, facts)
        if (larger := self._larger_values(device_set, base)) is not None:
            return sizes_by_larger(sizes_by_report(larger.report, facts), facts, base)
        return sizes_by_facts(facts, base)

    def are_sizes_counted(self, device_set: DeviceSet, base: Layout) -> bool:
        """Return True if `sizes` were measured, wherever the layers were."""
        return self._same_values(device_set, base) is not None

    def least_on_devices(self, device_set: DeviceSet, base: Layout) -> int:
        """Return the least bytes of devices that the model takes if all of it is on them.

        Fewer slots and less context make weights no smaller, and cells at best in proportion.
        """
        cells = base.context_tokens * base.slots
        if (known_least := self._least.get((device_set.node.engine_build, cells))) is not None:
            return known_least
        least = 0
        layers = len(self.facts(device_set.node).layer_weights_bytes)
        for known in self._of_build(device_set.node.engine_build):
            if known.cells >= cells and known.device_layers == layers and not known.layout.experts_on_host:
                weights, cache = known.on_devices_bytes
                least = max(least, weights + cache * cells // max(1, known.cells))
        file = device_set.node.model(self.digest)
        if not least and file is not None and file.facts is not None:
            least = sum(file.facts.layer_weights_bytes)
        self._least[device_set.node.engine_build, cells] = least
        return least

    def least_anywhere(self, device_set: DeviceSet) -> int:
        """Return the least bytes of blocks anywhere: their weights, as reports have them. 0: no report has them."""
        build = device_set.node.engine_build
        if build not in self._blocks:
            layers = len(self.facts(device_set.node).layer_weights_bytes)
            counts = (_block_weights(known.report, layers) for known in self._of_build(build))
            self._blocks[build] = min((count for count in counts if count), default=0)
        return self._blocks[build]

    def facts(self, node: NodeView) -> ModelFacts:
        """Return the facts of the header, as a node has it."""
        known = self._facts.get(node.id)
        if known is None:
            file = node.model(self.digest)
            assert file is not None, "device_sets have the file"
            known = self._facts[node.id] = file.facts or facts_of_size(file.size_bytes, file.layer_count)
        return known

    def final_fault(self) -> Fault | None:
        """Mark the file as unusable for every engine."""
        mine = (item for item in self.reports.items() if item[0].model_digest == self.digest)
        found = (one for key, one in mine if not key.layout.draft_digest)  # else the draft model may be the reason
        return next((one for one in found if isinstance(one, Fault) and one.reason == BAD_FILE), None)

    def _same_values(self, device_set: DeviceSet, base: Layout) -> Known | None:
        build = device_set.node.engine_build
        self._of_build(build)
        return self._by_values.get((build, _values(base)))

    def _larger_values(self, device_set: DeviceSet, base: Layout) -> Known | None:
        """Return the nearest report with no less context, no fewer slots and no smaller cache type."""
        if not self.bounds:
            return None
        wanted = _values_but_cells(base)
        found = [
            known
            for known in self._of_build(device_set.node.engine_build)
            if known.layout.context_tokens >= base.context_tokens
            and known.layout.slots >= base.slots
            and known.layout.cache_types in (base.cache_types, ("", ""))
            and _values_but_cells(known.layout) == wanted
        ]
        return min(found, key=lambda known: (known.cells, -known.device_layers), default=None)

    def _of_build(self, build: str) -> list[Known]:
        if self._by_build is None:
            self._by_build = {}
            for key, known in self._mine():
                self._by_build.setdefault(key.engine_build, []).append(known)
                values = key.engine_build, _values(known.layout)
                best = self._by_values.get(values)
                # With devices, it is known what the output takes there.
                if best is None or known.device_layers > best.device_layers:
                    self._by_values[values] = known
        return self._by_build.get(build, [])

    def _mine(self) -> Iterator[tuple[MeasureKey, Known]]:
        for key, report in self.reports.items():
            if key.model_digest == self.digest and isinstance(report, MemoryReport):
                layers = sum(kind[2] for kind in key.device_kinds)
                yield key, Known(layout=key.layout, report=report, device_layers=layers)


def _draft_bytes(node: NodeView, layout: Layout) -> int:
    """Estimate a draft model: its file, and a cache for each slot of its target."""
    file = node.model(layout.draft_digest) if layout.draft_digest else None
    if file is None:
        return 0
    facts = file.facts or facts_of_size(file.size_bytes, file.layer_count)
    return file.size_bytes + sum(cache_bytes(facts, layout.with_cache_types("", "")))


def measure_key(digest: str, device_set: DeviceSet, layout: Layout) -> MeasureKey:
    """Return the key of a layout's report."""
    kinds = []
    for part in layout.devices:
        _, device = device_set.device(part.node_id, part.device_id)
        kinds.append((device.backend, device.description, part.layer_count))
    return MeasureKey(
        model_digest=digest,
        engine_build=device_set.node.engine_build,
        device_kinds=tuple(kinds),
        layout=layout.without_devices(),
    )


def _block_weights(report: MemoryReport, layers: int) -> int:
    """Sum the weights without the output, of which devices may have a copy. 0: the report has none by layer."""
    parts = [part.layer_weights_bytes for part in (*report.devices, report.host)]
    if any(len(counts) != layers for counts in parts):
        return 0
    return sum(sum(counts[:-1]) for counts in parts)


def _without_guesses(part: DeviceBytes, *, caches: bool) -> DeviceBytes:
    """Return the bytes without compute graphs, and without `caches` if their sizes are not in the header."""
    less = replace(part, graph_bytes=0)
    return replace(less, cache_bytes=0, layer_cache_bytes=()) if caches else less


def _values(layout: Layout) -> Layout:
    """Return the values of a layout that the sizes of layers depend on; their places do not matter."""
    return replace(layout, devices=(), pipeline=False, output_on_host=False, experts_on_host=0)


def _values_but_cells(layout: Layout) -> Layout:
    return replace(_values(layout), context_tokens=0, slots=0).with_cache_types("", "")


def _named_as(report: MemoryReport, layout: Layout) -> MemoryReport:
    """Return the report with the devices of this layout: it may be from equal ones of another node."""
    if len(report.devices) != len(layout.devices):
        return report
    devices = tuple(
        replace(part, device_id=layers.device_id, node_id=layers.node_id)
        for part, layers in zip(report.devices, layout.devices, strict=True)
    )
    return replace(report, devices=devices)

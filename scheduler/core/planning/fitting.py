"""One shape on one device set: from sizes and rooms to a layout, and whether a measured one fits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from common.spec.layout import DeviceLayers, Layout
from scheduler.core.planning.candidates import Placement
from scheduler.core.planning.known_reports import measure_key
from scheduler.core.planning.layer_rooms import Beside, LayerRooms
from scheduler.core.sizes.estimate import layer_ranges
from scheduler.core.sizes.graphs import Graphs, kind_of
from scheduler.core.sizes.layers import LayerSizes, sizes_by_report
from scheduler.core.sizes.ledger import Need, needs_of
from scheduler.core.sizes.speeds import OwnedDevice, expected_s, speed_of, step_s
from scheduler.core.sizes.splitting import Bin, DeviceKey, Filling, Split, split_layers
from scheduler.core.values.constraints import FillPolicy, Shape, label_means
from scheduler.core.values.facts import ModelFacts
from scheduler.core.values.memory import MemoryOrigin, MemoryReport, memory_text

COMPLETE_SHAPES = frozenset({Shape.ONE_DEVICE, Shape.ONE_NODE, Shape.NODES})


@dataclass(slots=True, kw_only=True)
class Fitting(LayerRooms):
    """Plans layouts of one shape on one device set. Lives for one run of the loop (`converge`)."""

    base: Layout  # everything but the devices
    facts: ModelFacts
    sizes: LayerSizes  # as well as they are known before the run
    devices_min: int = 1
    cells_guessed: bool = False  # sizes of the cache are by formula, and can be counted
    speeds_known: bool = False
    decoding: Mapping[DeviceKey, float] = field(default_factory=dict)
    host_text: str = ""  # why the last plan left more to the host than it has
    _graphs: Graphs = field(default_factory=Graphs)
    _origin: MemoryOrigin = MemoryOrigin.MEASURED

    def plan(self, report: MemoryReport | None, backoff: float, exactly: int | None = None) -> Layout | None:
        """Return a layout for these sizes, with `exactly` so many layers if given; None: the shape cannot have them."""
        if report is not None:
            self.sizes = sizes_by_report(report, self.facts)
            self._origin = report.origin
            self._graphs.take(report, self.device_set.node.id)
        if self.shape is Shape.CPU or self.constraints.tensor_split:
            layout = self.base.without_devices() if self.shape is Shape.CPU else self._layout(self._by_shares())
            return layout if not backoff else None  # whatever is left alone of devices changes nothing
        if self.shape is Shape.EXPERTS_ON_HOST:
            return self._plan_experts(backoff, exactly)
        wanted = self.given_layers if exactly is None else exactly
        if self.shape in COMPLETE_SHAPES and wanted is not None and wanted < len(self.sizes.weights):
            return None  # a count that leaves layers to the host is no such shape, however they are split
        split = self._split(backoff, wanted)
        if report is None and self.cells_guessed and self.shape in COMPLETE_SHAPES and not split.is_complete:
            self.cells_guessed = False
            self.sizes = self.sizes.without_caches()  # no formula refuses what was never counted
            return self.plan(None, backoff, exactly)
        if wanted is not None and split.taken != wanted:
            return None
        if self.shape in COMPLETE_SHAPES and not split.is_complete:
            return None
        blocks = split.taken - (not split.output_on_host)
        return self._layout(split) if blocks and self._host_holds(split) else None

    def layer_seconds(self, key: DeviceKey) -> Sequence[float]:
        """Return the seconds of each layer on this device, for a token."""
        speed = speed_of(self.device_set.device(*key)[1], known=self.speeds_known)
        return [self.facts.bytes_per_token(layer) / speed for layer in range(len(self.facts.layer_weights_bytes))]

    def bins_beside(self, graphs: Mapping[DeviceKey, int], sizes: Sequence[int]) -> list[Bin]:
        """Return the devices with their room for layers, the roomiest first."""
        return self.bins(self._beside(graphs, sizes), backoff=0.0, merged=self._is_spread)

    def split_exactly(self, bins: Sequence[Bin], sizes: Sequence[int], taken: int, *, output: bool) -> Split:
        """Split so many layers over all of these devices, filled in their fixed order."""
        return split_layers(sizes, bins, self._filling(taken, output=output, devices_min=len(bins)))

    def layout_of(self, split: Split) -> Layout | None:
        """Return the layout of a split; None: the host cannot hold its part."""
        return self._layout(split) if self._host_holds(split) else None

    def worth(self, layout: Layout) -> tuple[int, ...]:
        """Rank by blocks on devices, without those with experts in host RAM, then the output, then few devices."""
        kind = kind_of(layout)
        fewer = -len(layout.devices) if self.shape is Shape.ONE_NODE and self.in_any_order else 0
        return kind.taken - kind.output - layout.experts_on_host, kind.output, fewer

    def offloaded(self, layout: Layout) -> int:
        """Count the layers on devices; experts that stay in host RAM reduce it."""
        return sum(part.layer_count for part in layout.devices) - layout.experts_on_host

    def needs(self, report: MemoryReport, layout: Layout) -> tuple[Need, ...] | None:
        """Return the needs of a layout, by device."""
        return needs_of(self.device_set.node, layout, report, self.kept, self.device_set.nodes)

    def fits(self, report: MemoryReport, layout: Layout) -> bool:
        """Return True if every device and every pool has room, and no cap is exceeded."""
        needs = self.needs(report, layout)
        if needs is None or self.over_cap(needs):
            return False
        if self._may_exceed(self.given_layers):
            return not any(need.total_bytes > self.whole(need) for need in needs)
        return not self.rooms.short_pools(needs, self.device_set.nodes, self.without)

    def placement(self, layout: Layout, report: MemoryReport, *, rounds: int) -> Placement:
        """Return the placement with a layout that fits as measured, before its evictions are chosen."""
        needs = self.needs(report, layout)
        assert needs is not None, "what fits belongs to its layout"
        return Placement(
            node_id=self.device_set.node.id,
            layout=layout,
            report=report,
            needs=needs,
            shape=self.shape,
            key=measure_key(self.kept.model_digest, self.device_set, layout),
            rounds=rounds,
        )

    def _may_exceed(self, given: int | None) -> bool:
        """Return True if a user's number of layers may exceed the free bytes: no replica of ours is on the devices."""
        return given is not None and given == self.given_layers and not self.others_are_loaded()

    @property
    def given_layers(self) -> int | None:
        """Return the user's number of layers on devices, at most all."""
        wanted = self.constraints.num_gpu
        return None if wanted is None else min(wanted, len(self.facts.layer_weights_bytes))

    def expected_s(self, layout: Layout) -> float:
        """Return the seconds for a token with this layout, beside the replicas that decode on its devices now."""
        owned = [self.device_set.device(part.node_id, part.device_id) for part in layout.devices]
        ranges = layer_ranges(layout, len(self.facts.layer_weights_bytes) - 1)
        step = step_s(
            self.facts,
            [(one, range(*layers)) for one, layers in zip(owned, ranges, strict=True)],
            self.device_set.node.host_device,
            experts_on_host=layout.experts_on_host,
            speeds_known=self.speeds_known,
        )
        return expected_s(step, [(node.id, device.id) for node, device in owned or self._host()], self.decoding)

    def _host(self) -> Sequence[OwnedDevice]:
        host = self.device_set.node.host_device
        return [(self.device_set.node, host)] if host is not None else []

    def _split(self, backoff: float, given: int | None, experts_on_host: int = 0) -> Split:
        sizes = self.sizes.on_devices(experts_on_host=experts_on_host)
        merged = self._is_spread or self.given_layers is not None
        bins = self.bins(self._beside(self._graphs.last, sizes), backoff=backoff, merged=merged)
        return split_layers(sizes, bins, self._filling(given))

    @property
    def in_any_order(self) -> bool:
        """Return True if devices may be left out or reordered. Nodes stay together; to spread is to use them all."""
        return self.shape is not Shape.NODES and not self._is_spread

    @property
    def _is_spread(self) -> bool:
        return self.constraints.policy is FillPolicy.SPREAD

    def _filling(self, given: int | None, *, output: bool | None = None, devices_min: int | None = None) -> Filling:
        return Filling(
            spread=self._is_spread,
            given_layers=given,
            may_exceed=self._may_exceed(given),
            output=output,
            only_complete=given is None and self.shape in COMPLETE_SHAPES and not self._is_spread,
            devices_min=max(self.devices_min, self._graphs.device_count) if devices_min is None else devices_min,
            score=self._score,
        )

    def _beside(self, graphs: Mapping[DeviceKey, int], sizes: Sequence[int] = ()) -> Beside:
        return Beside(
            graphs=graphs,
            host_bytes=self.sizes.input_bytes + self.sizes.beside_bytes + self._graphs.host_bytes,
            largest_layer_bytes=max(sizes, default=0) if self._origin is MemoryOrigin.ESTIMATED else 0,
            origin=self._origin,
        )

    def _plan_experts(self, backoff: float, exactly: int | None) -> Layout | None:
        """Plan the fewest blocks with experts in host RAM, so that all the rest is on devices."""
        blocks, layers = len(self.sizes.experts) - 1, len(self.sizes.weights)
        if exactly is not None:
            split = self._split(backoff, None, layers - exactly)
            return self._layout(split, layers - exactly) if split.is_complete else None
        low, high = 1, blocks
        if blocks < 1 or not self._split(backoff, None, high).is_complete:
            return None
        while low < high:
            middle = (low + high) // 2
            if self._split(backoff, None, middle).is_complete:
                high = middle
            else:
                low = middle + 1
        split = self._split(backoff, None, high)
        return self._layout(split, high) if self._host_holds(split, high) else None

    def _host_holds(self, split: Split, experts_on_host: int = 0) -> bool:
        """Return True if the host has room for its part; if not, the shape fails, and the text says so."""
        left = [*range(split.host_blocks), *([len(self.sizes.weights) - 1] if split.output_on_host else [])]
        always, have = self.on_host(self._beside({}))
        need: int = always + sum(self.sizes.weights[layer] + self.sizes.caches[layer] for layer in left)
        need += sum(self.sizes.experts[split.host_blocks : experts_on_host])
        if need > have >= 0:
            self.host_text = memory_text(need, have)
        return need <= have

    def _score(self, split: Split) -> tuple[object, ...]:
        """Rank sets of equally many devices: with the requested GPU, the fastest, the roomiest, then by name."""
        keys = [key for key, _ in split.parts]
        owned = [self.device_set.device(*key) for key in keys]
        room = sum(self.rooms.on(node, device, self.without).available_bytes for node, device in owned)
        main = self.constraints.main_device(self.device_set.node)
        lacks_main = main is not None and (self.device_set.node.id, main.id) not in keys
        return lacks_main, self.expected_s(self._layout(split)), -room, sorted(keys)

    def _by_shares(self) -> Split:
        """Split layers in the operator's proportions, in the order of their list."""
        constraints = self.constraints
        shares = [
            ((node.id, device.id), share)
            for label, share in zip(constraints.devices, constraints.tensor_split, strict=True)
            for node, device in self.device_set.devices
            if share and label_means(label, node, device)
        ]
        layers = len(self.facts.layer_weights_bytes)
        wanted = layers if self.given_layers is None else self.given_layers
        whole, passed, parts, before = sum(share for _, share in shares), 0.0, list[tuple[DeviceKey, int]](), 0
        for key, share in shares:
            passed += share
            upto = round(wanted * passed / whole)
            parts.append((key, upto - before))
            before = upto
        return Split(parts=tuple(part for part in parts if part[1]), host_blocks=layers - before)

    def _layout(self, split: Split, experts_on_host: int = 0) -> Layout:
        devices = tuple(
            DeviceLayers(
                device_id=device_id, layer_count=count, node_id="" if node_id == self.device_set.node.id else node_id
            )
            for (node_id, device_id), count in split.parts
        )
        return replace(
            self.base,
            devices=devices,
            output_on_host=split.output_on_host and bool(devices),
            experts_on_host=experts_on_host,
        )

"""One shape on one ground: from sizes and rooms to a layout, and whether a measured one fits (spec: 4.4)."""

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from scheduler.core.candidates import PlacementRequest
from scheduler.core.constraints import FillPolicy, Shape, label_means
from scheduler.core.estimate import layer_ranges
from scheduler.core.facts import ModelFacts
from scheduler.core.grounds import Ground
from scheduler.core.layers import LayerSizes, sizes_by_report
from scheduler.core.layouts import DeviceLayers, Layout
from scheduler.core.ledger import Kept, Need, needs_of, overhead_bytes, pools_of, reserve_bytes
from scheduler.core.memory import MemoryOrigin, MemoryReport, memory_text
from scheduler.core.rooms import Rooms
from scheduler.core.speeds import OwnedDevice, expected_s, speed_classes, step_s
from scheduler.core.splitting import Bin, DeviceKey, Filling, Split, split_layers
from scheduler.core.view import DeviceKind

TARGETS_MAX = 4  # of better splits that are looked at, none of them far away
COMPLETE_SHAPES = frozenset({Shape.ONE_DEVICE, Shape.ONE_NODE, Shape.NODES})


@dataclass(slots=True, kw_only=True)
class Fitting:
    """Plans layouts of one shape on one ground; what converge.Planning asks for. Lives for one run of the loop."""

    shape: Shape
    ground: Ground
    base: Layout  # everything but the devices
    request: PlacementRequest
    facts: ModelFacts
    sizes: LayerSizes  # as well as they are known before the run
    rooms: Rooms
    kept: Kept
    without: frozenset[str]
    devices_min: int = 1
    cells_guessed: bool = False  # sizes of the cache are by formula, and can be counted
    speeds_known: bool = False
    decoding: Mapping[DeviceKey, float] = field(default_factory=dict)
    host_text: str = ""  # why the last plan left more to the host than it has
    _graphs: dict[DeviceKey, int] = field(default_factory=dict)  # as last measured there, with the projector
    # The smallest that was measured, by whether the output lay on a device, and by how many devices there were.
    _least_graphs: dict[tuple[bool, int], dict[DeviceKey, int]] = field(default_factory=dict)
    _device_count: int = 0
    _origin: MemoryOrigin = MemoryOrigin.MEASURED
    _host_graph: int = 0

    def plan(self, report: MemoryReport | None, backoff: float, exactly: int | None = None) -> Layout | None:
        """A layout for these sizes; None: the shape cannot be had."""
        if report is not None:
            self.sizes = sizes_by_report(report, self.facts)
            self._origin = report.origin
            self._take_graphs(report)
        if self.shape is Shape.CPU:
            return self.base.without_devices()
        if self.request.constraints.tensor_split:
            return self._layout(self._by_shares())
        if self.shape is Shape.EXPERTS_ON_HOST:
            return self._plan_experts(backoff, exactly)
        split = self._split(backoff, self.given_layers if exactly is None else exactly)
        if report is None and self.cells_guessed and self.shape in COMPLETE_SHAPES and not split.is_complete:
            self.cells_guessed = False
            self.sizes = self.sizes.without_caches()  # no formula refuses what was never counted
            return self.plan(None, backoff, exactly)
        wanted = self.given_layers if exactly is None else exactly
        if wanted is not None and split.taken != wanted:
            return None
        if self.shape in COMPLETE_SHAPES and not split.is_complete:
            return None
        blocks = split.taken - (not split.output_on_host)
        return self._layout(split) if blocks and self._host_holds(split) else None

    def better(self, layout: Layout | None, tried: Collection[Layout]) -> Layout | None:
        """The next better split that may fit, if graphs are as small as they were ever seen on their devices."""
        if self.shape in (Shape.CPU, Shape.EXPERTS_ON_HOST) or self.request.constraints.tensor_split:
            return None
        layers = len(self.sizes.weights)
        targets = [(layers - 1, True)]
        if self.shape is Shape.PARTIAL:
            blocks, has_output = self._worth(layout)
            order = [(count, output) for count in range(layers) for output in (False, True) if count]
            targets = [one for one in order if one > (blocks, has_output)][:TARGETS_MAX]
        elif layout is not None:
            return None
        for (blocks, output), count in itertools.product(
            targets, range(self.devices_min, len(self.ground.devices) + 1)
        ):
            graphs = self._least_graphs.get((output, count), {})
            split = self._split(0.0, blocks + output, output=output, graphs=graphs, devices_max=count)
            found = self._layout(split) if split.taken == blocks + output and self._host_holds(split) else None
            if found is not None and len(found.devices) == count and found not in tried:
                return found
        return None

    def _worth(self, layout: Layout | None) -> tuple[int, bool]:
        if layout is None:
            return 0, False
        taken = sum(part.layer_count for part in layout.devices)
        return taken - (not layout.output_on_host), not layout.output_on_host

    def offloaded(self, layout: Layout) -> int:
        """Layers on devices; experts that stay in host RAM count against it."""
        return sum(part.layer_count for part in layout.devices) - layout.experts_on_host

    def needs(self, report: MemoryReport, layout: Layout) -> tuple[Need, ...] | None:
        """What a layout takes, by device."""
        return needs_of(self.ground.node, layout, report, self.kept, self.ground.nodes)

    def fits(self, report: MemoryReport, layout: Layout) -> bool:
        """Whether every device and every pool has room, and no cap is exceeded."""
        needs = self.needs(report, layout)
        if needs is None or self._over_cap(needs):
            return False
        if self._may_exceed(self.given_layers):
            return not any(need.total_bytes > self._whole(need) for need in needs)
        return not self.rooms.short_pools(needs, self.ground.nodes, self.without)

    def _may_exceed(self, given: int | None) -> bool:
        """A count that the user gave may exceed what is free where nothing of ours is loaded; never what there is."""
        return given is not None and given == self.given_layers and not self._others_are_loaded()

    def _whole(self, need: Need) -> int:
        """What a device could have for us if it were empty; of the machine's RAM, what is free."""
        node = self.ground.nodes[need.node_id]
        device = node.device(need.device_id)
        assert device is not None, "needs name devices of their node"
        if device.kind is DeviceKind.CPU:
            return self.rooms.on(node, device, self.without).available_bytes
        return device.total_bytes - overhead_bytes(device, self.kept.policy)

    @property
    def given_layers(self) -> int | None:
        """Layers that the user wants on devices, at most all."""
        wanted = self.request.constraints.num_gpu
        return None if wanted is None else min(wanted, len(self.facts.layer_weights_bytes))

    def expected_s(self, layout: Layout) -> float:
        """Seconds for a token with this layout, beside those who decode on its devices now."""
        owned = [self.ground.device(part.node_id, part.device_id) for part in layout.devices]
        ranges = layer_ranges(layout, len(self.facts.layer_weights_bytes) - 1)
        step = step_s(
            self.facts,
            [(one, range(*layers)) for one, layers in zip(owned, ranges, strict=True)],
            self.ground.node.host_device,
            experts_on_host=layout.experts_on_host,
            speeds_known=self.speeds_known,
        )
        return expected_s(step, owned or self._host(), self.decoding)

    def _host(self) -> Sequence[OwnedDevice]:
        host = self.ground.node.host_device
        return [(self.ground.node, host)] if host is not None else []

    def _take_graphs(self, report: MemoryReport) -> None:
        """A device that was not in the layout keeps the graph that was last measured there."""
        has_output = any(part.layer_weights_bytes and part.layer_weights_bytes[-1] for part in report.devices)
        for part in report.devices:
            key = (part.node_id or self.ground.node.id, part.device_id)
            graph = self._graphs[key] = part.graph_bytes + part.projector_bytes
            least = self._least_graphs.setdefault((has_output, len(report.devices)), {})
            least[key] = min(graph, least.get(key, graph))
        self._device_count = sum(1 for part in report.devices if part.graph_bytes)
        self._host_graph = report.host.graph_bytes

    def _split(
        self,
        backoff: float,
        given: int | None,
        experts_on_host: int = 0,
        *,
        output: bool | None = None,
        graphs: Mapping[DeviceKey, int] | None = None,
        devices_max: int | None = None,
    ) -> Split:
        sizes = self.sizes.on_devices(experts_on_host=experts_on_host)
        is_spread = self.request.constraints.policy is FillPolicy.SPREAD
        filling = Filling(
            spread=is_spread,
            given_layers=given,
            may_exceed=self._may_exceed(given),
            output=output,
            devices_min=self.devices_min if graphs is not None else max(self.devices_min, self._device_count),
            score=self._score,
        )
        merged = is_spread or self.given_layers is not None
        bins = self._bins(backoff, sizes, self._graphs if graphs is None else graphs, merged=merged)
        bins.sort(key=lambda one: (-one.room_bytes, one.key))
        return split_layers(sizes, bins[:devices_max], filling)

    def _plan_experts(self, backoff: float, exactly: int | None) -> Layout | None:
        """The fewest blocks whose experts stay in host RAM, so that all the rest lies on devices."""
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
        """Whether the host has room for what is left to it; if not, the shape fails, and the text says so."""
        host = self.ground.node.host_device
        if host is None:
            return False
        left = [*range(split.host_blocks), *([len(self.sizes.weights) - 1] if split.output_on_host else [])]
        need: int = self._always_on_host((self.ground.node, host))
        need += sum(self.sizes.weights[layer] + self.sizes.caches[layer] for layer in left)
        need += sum(self.sizes.experts[split.host_blocks : experts_on_host])
        have = self.rooms.on(self.ground.node, host, self.without).available_bytes
        if need > have:
            self.host_text = memory_text(need, have)
        return need <= have

    def _bins(
        self, backoff: float, sizes: Sequence[int], graphs: Mapping[DeviceKey, int], *, merged: bool
    ) -> list[Bin]:
        classes = self._classes(merged=merged)
        largest = max(sizes, default=0) if self._origin is MemoryOrigin.ESTIMATED else 0
        rooms: dict[DeviceKey, int] = {}
        for node, device in self.ground.devices:
            have = self.rooms.on(node, device, self.without)
            cap = self.request.constraints.max_bytes_on(node, device)
            room = have.available_bytes if cap is None else min(have.available_bytes, cap)
            beside = self._beside((node, device), graphs) + largest
            rooms[node.id, device.id] = max(0, room - int(backoff * have.free_bytes) - beside)
        self._share_pools(rooms, graphs)
        return [Bin(key=key, room_bytes=room, speed_class=classes[key]) for key, room in rooms.items()]

    def _classes(self, *, merged: bool) -> dict[DeviceKey, int]:
        """One class per node where there are several, the runner's own first: it takes the end of the model."""
        if self.shape is not Shape.NODES:
            return speed_classes(self.ground.devices, merged=merged)
        order = {node_id: number for number, node_id in enumerate(self.ground.nodes)}
        return {(node.id, device.id): order[node.id] for node, device in self.ground.devices}

    def _beside(self, one: OwnedDevice, graphs: Mapping[DeviceKey, int]) -> int:
        """What a device needs beside layers."""
        node, device = one
        margin = self.kept.margin_bytes(node, device, self._origin)
        return graphs.get((node.id, device.id), 0) + reserve_bytes(device, self.kept.policy) + margin

    def _always_on_host(self, host: OwnedDevice) -> int:
        """What the runner's node needs of its RAM wherever the layers lie."""
        return self.sizes.input_bytes + self.sizes.beside_bytes + self._host_graph + self._beside(host, {})

    def _share_pools(self, rooms: dict[DeviceKey, int], graphs: Mapping[DeviceKey, int]) -> None:
        """Devices of one pool are not added up: what the pool has is shared in proportion to their rooms."""
        members: dict[tuple[str, str], list[OwnedDevice]] = {}
        for node, device in self.ground.devices:
            for pool_id in pools_of(device):
                members.setdefault((node.id, pool_id), []).append((node, device))
        for (node_id, pool_id), owned in members.items():
            node = owned[0][0]
            host = node.host_device
            is_host = host is not None and host.pool_id == pool_id
            pool = self.rooms.of_pool(node, pool_id, self.without)
            if pool is None or (len(owned) == 1 and not is_host):
                continue
            left = pool.available_bytes - sum(self._beside(one, graphs) for one in owned)
            if is_host and host is not None and node_id == self.ground.node.id:
                left -= self._always_on_host((node, host))
            keys = [(node_id, device.id) for _, device in owned]
            together = sum(rooms[key] for key in keys)
            if together > max(0, left):
                for key in keys:
                    rooms[key] = rooms[key] * max(0, left) // together

    def _others_are_loaded(self) -> bool:
        return any(self.rooms.on(node, device, self.without).promised_bytes > 0 for node, device in self.ground.devices)

    def _over_cap(self, needs: Sequence[Need]) -> bool:
        for need in needs:
            node = self.ground.nodes[need.node_id]
            device = node.device(need.device_id)
            cap = self.request.constraints.max_bytes_on(node, device) if device is not None else None
            if cap is not None and need.report_bytes > cap:
                return True
        return False

    def _score(self, split: Split) -> tuple[object, ...]:
        """Of equally many devices: those with the GPU that was asked for, the fastest, the roomiest, then by name."""
        keys = [key for key, _ in split.parts]
        owned = [self.ground.device(*key) for key in keys]
        room = sum(self.rooms.on(node, device, self.without).available_bytes for node, device in owned)
        main = self.request.constraints.main_device(self.ground.node)
        lacks_main = main is not None and (self.ground.node.id, main.id) not in keys
        return lacks_main, self.expected_s(self._layout(split)), -room, sorted(keys)

    def _by_shares(self) -> Split:
        """Layers in the proportions that the operator has given, in the order of their list."""
        constraints = self.request.constraints
        shares = [
            ((node.id, device.id), share)
            for label, share in zip(constraints.devices, constraints.tensor_split, strict=True)
            for node, device in self.ground.devices
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
                device_id=device_id, layer_count=count, node_id="" if node_id == self.ground.node.id else node_id
            )
            for (node_id, device_id), count in split.parts
        )
        return replace(
            self.base,
            devices=devices,
            output_on_host=split.output_on_host and bool(devices),
            experts_on_host=experts_on_host,
        )

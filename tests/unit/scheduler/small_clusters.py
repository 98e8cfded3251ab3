"""Small random clusters: a model, an engine that hides its graphs, and a node with a few devices of any size."""

import random
from dataclasses import dataclass, replace

from common.spec.layout import Layout
from scheduler.core.planning.candidates import ClusterView, Placement, PlacementRequest, Refusal
from scheduler.core.sizes.estimate import sizes_by_facts
from scheduler.core.sizes.ledger import Kept, needs_of
from scheduler.core.sizes.rooms import Rooms
from scheduler.core.values.memory import GIB, MIB
from scheduler.core.values.policy import Policy
from scheduler.core.values.view import NodeView
from tests.unit.scheduler.builders import cpu, gpu, model, node
from tests.unit.scheduler.hidden_engine import HiddenEngine, decide, random_engine
from tests.unit.scheduler.layouts_by_force import Force, Found, Rank, rank_of

POLICY = Policy(
    host_reserve_bytes_min=0,
    host_reserve_fraction=0.0,
    device_reserve_bytes=20 * MIB,
    host_process_reserve_bytes=10 * MIB,
    margin_bytes=10 * MIB,
)
BASE = Layout(context_tokens=2048, slots=2, batch_tokens=512)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model and a node for it."""

    engine: HiddenEngine
    node: NodeView
    request: PlacementRequest

    @property
    def gpu_ids(self) -> tuple[str, ...]:
        return tuple(device.id for device in self.node.devices if device.id != "cpu")

    @property
    def layers(self) -> int:
        return len(self.engine.facts.layer_weights_bytes)

    def decide(self) -> tuple[Placement | Refusal, list[Layout]]:
        return decide(self.request, ClusterView(nodes=(self.node,)), POLICY, self.engine)

    def rank(self, layout: Layout) -> Rank:
        return rank_of(layout, self.layers)

    def fits(self, layout: Layout) -> bool:
        """By what the engine really takes."""
        needs = needs_of(self.node, layout, self.engine.count(layout), Kept(policy=POLICY))
        assert needs is not None
        return not Rooms(policy=POLICY, promises=()).short_pools(needs, {self.node.id: self.node})

    def best(self) -> Found:
        """Found by force; host RAM holds everything in these clusters."""
        sizes = sizes_by_facts(self.engine.facts, BASE)
        weights = self.engine.facts.layer_weights_bytes
        seconds = {device.id: [one / (device.speed_bytes_s or 1.0) for one in weights] for device in self.node.devices}
        return Force(
            sizes=sizes.on_devices(),
            layer_s={name: seconds[name] for name in self.gpu_ids},
            host_s=seconds["cpu"],
            rooms={name: self._room(name) for name in self.gpu_ids},
            base=BASE,
        ).best(self.engine.graph_bytes)

    def _room(self, device_id: str) -> int:
        """Return the bytes for the layers of a model and their graph: the free ones, less those that the ledger
        keeps."""
        layout = BASE.on(device_id, self.layers)
        needs = needs_of(self.node, layout, self.engine.count(layout), Kept(policy=POLICY))
        assert needs is not None
        kept = needs[0].total_bytes - needs[0].report_bytes + self.engine.more_on(device_id)
        have = Rooms(policy=POLICY, promises=()).of_need(needs[0], {self.node.id: self.node})
        return have.available_bytes - kept

    def with_largest_graphs(self) -> "Case":
        """The same with graphs that are always as large as the largest one of any layout here."""
        engine = self.engine
        largest_mib = engine.base_mib + engine.swing_mib + engine.output_mib
        largest_mib += engine.per_device_mib * (len(self.gpu_ids) - 1) + max(engine.device_mib.values(), default=0)
        steady = replace(engine, base_mib=largest_mib, per_device_mib=0, output_mib=0, swing_mib=0, device_mib={})
        return replace(self, engine=steady)

    def token_s(self, layout: Layout) -> float:
        """Every layer is read once, from where it lies."""
        speeds = {device.id: device.speed_bytes_s or 1.0 for device in self.node.devices}
        weights = list(self.engine.facts.layer_weights_bytes)
        seconds = weights.pop() / speeds["cpu"] if layout.output_on_host else 0.0
        for part in reversed(layout.devices):
            seconds += sum(weights[-part.layer_count :]) / speeds[part.device_id]
            del weights[-part.layer_count :]
        return seconds + sum(weights) / speeds["cpu"]


def case(seed: int, *, devices_max: int = 5, speeds: bool = False, kinds: bool = False) -> Case:
    """Up to twelve layers; each device holds a part of the model, or all of it.

    `speeds`: devices are differently fast; `kinds`: graphs are larger on some of them.
    """
    chance = random.Random(seed)
    engine = random_engine(chance)
    size = sum(engine.facts.layer_weights_bytes) / GIB
    devices = []
    for index in range(chance.randint(1, devices_max)):
        free = chance.uniform(0.1, 1.0) * size * chance.choice([0.4, 0.7, 1.2]) + 0.1
        devices.append(replace(gpu(f"g{index}", free=free, total=free), description=f"kind {index}"))
    file = replace(model(), layer_count=len(engine.facts.layer_weights_bytes) - 1, facts=engine.facts)
    ram = cpu(free=size * 2 + 2, total=size * 2 + 2)
    if speeds:
        devices = [replace(device, speed_bytes_s=chance.uniform(200e9, 900e9)) for device in devices]
        ram = replace(ram, speed_bytes_s=40e9)
    if kinds:
        engine = replace(engine, device_mib={device.id: chance.choice([0, 0, 30, 100]) for device in devices})
    one = node(devices=(*devices, ram), models=(file,))
    request = PlacementRequest(model_digest=file.digest, layout=BASE, slot_steps=(2,))
    return Case(engine=engine, node=one, request=request)

"""An engine whose compute graphs nobody knows beforehand, on small random clusters, and every layout that there is."""

import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from common.spec.layout import DeviceLayers, Layout
from scheduler.core.planning.candidates import (
    ClusterView,
    MeasureFirst,
    MeasureKey,
    Placement,
    PlacementRequest,
    Refusal,
)
from scheduler.core.planning.placement import plan_placement
from scheduler.core.sizes.estimate import estimate_report, sizes_by_facts
from scheduler.core.values.facts import ModelFacts
from scheduler.core.values.faults import Fault
from scheduler.core.values.memory import MIB, MemoryOrigin, MemoryReport
from scheduler.core.values.policy import Policy

ROUNDS_MAX = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenEngine:
    """Counts layers as the header says, and adds graphs that depend on the whole layout."""

    facts: ModelFacts
    base_mib: int
    per_device_mib: int  # more for every other device of the layout
    output_mib: int
    swing_mib: int  # comes and goes with every second layer
    host_mib: int
    device_mib: Mapping[str, int] = field(default_factory=dict)  # more on devices of another kind

    def count(self, layout: Layout) -> MemoryReport:
        """Return the bytes that are really allocated."""
        report = estimate_report(sizes_by_facts(self.facts, layout), 0, layout)
        last = len(layout.devices) - 1
        taken = sum(part.layer_count for part in layout.devices)
        each, beside_output = self.graph_bytes(len(layout.devices), taken, not layout.output_on_host)
        devices = (
            replace(part, graph_bytes=each + self.more_on(part.device_id) + (beside_output if index == last else 0))
            for index, part in enumerate(report.devices)
        )
        host = replace(report.host, graph_bytes=self.host_mib * MIB)
        return MemoryReport(origin=MemoryOrigin.MEASURED, devices=tuple(devices), host=host)

    def graph_bytes(self, count: int, taken: int, output: bool) -> tuple[int, int]:
        """Of each of `count` devices that take so many layers, and how much more of the one with the output."""
        mib = self.base_mib + self.per_device_mib * (count - 1)
        mib += self.swing_mib if taken % 2 == 0 else 0
        return mib * MIB, self.output_mib * MIB if output else 0

    def more_on(self, device_id: str) -> int:
        """Return the bytes that a graph takes more on this device, whatever the layout."""
        return self.device_mib.get(device_id, 0) * MIB


def random_facts(chance: random.Random) -> ModelFacts:
    """Of a small model: up to 12 layers, blocks of about one size, an output of any."""
    blocks = chance.randint(1, 11)
    block = chance.randint(50, 400) * MIB
    return ModelFacts(
        architecture="llama",
        embedding_length=64,
        vocabulary_size=1000,
        head_count=4,
        layer_weights_bytes=(
            *(int(block * chance.uniform(0.9, 1.1)) for _ in range(blocks)),
            chance.randint(10, 600) * MIB,
        ),
        input_weights_bytes=chance.randint(0, 100) * MIB,
        layer_key_width=(chance.choice([64, 256]),) * blocks,
        layer_value_width=(chance.choice([64, 256]),) * blocks,
    )


def random_engine(chance: random.Random) -> HiddenEngine:
    """Graphs of up to some hundred MiB."""
    return HiddenEngine(
        facts=random_facts(chance),
        base_mib=chance.randint(0, 200),
        per_device_mib=chance.choice([0, 20, 60]),
        output_mib=chance.choice([0, 40, 150]),
        swing_mib=chance.choice([0, 0, 60, 150]),
        host_mib=chance.randint(0, 100),
    )


def layouts_on(device_ids: tuple[str, ...], layers: int, base: Layout) -> Iterator[Layout]:
    """Every layout over these devices in any order, each with at least one layer."""
    for order in itertools.permutations(device_ids):
        for output_on_host in (False, True):
            most = layers - output_on_host
            for taken in range(len(order), most + 1):
                for cuts in itertools.combinations(range(1, taken), len(order) - 1):
                    counts = [b - a for a, b in itertools.pairwise((0, *cuts, taken))]
                    parts = tuple(
                        DeviceLayers(device_id=name, layer_count=count)
                        for name, count in zip(order, counts, strict=True)
                    )
                    yield replace(base, devices=parts, output_on_host=output_on_host)


def decide(
    request: PlacementRequest, view: ClusterView, policy: Policy, engine: HiddenEngine
) -> tuple[Placement | Refusal, list[Layout]]:
    """Plan, measuring whatever is asked for."""
    reports: dict[MeasureKey, MemoryReport | Fault] = {}
    measured: list[Layout] = []
    for _ in range(ROUNDS_MAX):
        outcome = plan_placement(request, view, reports, policy)
        if not isinstance(outcome, MeasureFirst):
            return outcome, measured
        assert outcome.key not in reports, "asked twice for the same report"
        measured.append(outcome.layout)
        reports[outcome.key] = engine.count(outcome.layout)
    raise AssertionError("measures without end")

"""Duration of placement in a large cluster, and cost of an idle control plane: `make bench-placement`.

    decision   one device is chosen of 1,000 nodes × 8, reports known, on an inventory that was decided on before
    plan       the same on an inventory that has just arrived, for three shapes: everything is worked out anew
    nodes      the same for a model that no node holds, over 15 devices of two of 1,000 nodes that lend
    known      plan, on nodes of five products whose speeds replicas have shown, one device in three with another model
               on it: four shapes, layers that the user counts, the nodes of a tenant, named devices, and a refusal
    load       the same as the scheduler makes it, with 1,000 replicas loaded: a request comes in and a report is asked
               for, the report comes in and a placement is written. State, snapshot, plans, routes, effects: all of it
    inventory  the scheduler takes in an inventory of those 1,000 nodes
    idle       100 hosts that report over gRPC to real processes of discovery and scheduler (idle_plane.py)

Times are of the processor, so that neighbours on the machine do not count. Writes
bench/results/<date>-placement.json. Bars: decision ≤ 10 ms, plans and load ≤ 50 ms (median), idle ≤ 5 % of a core.
"""

import argparse
import datetime
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from bench.idle_plane import IdleCost, measure_idle
from bench.machine import ROOT, describe_machine
from bench.placement_clusters import DEVICES, NODES, cluster, known_cluster, lending
from common.spec.layout import Layout
from common.telemetry.collector import Collector
from scheduler.core.planning.candidates import ClusterView, MeasureFirst, MeasureKey, Placement, PlacementRequest
from scheduler.core.planning.placement import plan_placement
from scheduler.core.state.effects import Measure, SaveDesired
from scheduler.core.state.events import EnsureRequested, Event, InventorySeen, MeasureEnded
from scheduler.core.values.asked import SLOTS_AUTO
from scheduler.core.values.constraints import Constraints
from scheduler.core.values.faults import Fault
from scheduler.core.values.memory import MemoryReport
from scheduler.core.values.policy import Policy
from tests.unit.scheduler.builders import counted, cpu, gpu, model, node, runner
from tests.unit.scheduler.surroundings import FakeRunner
from tests.unit.scheduler.world import World, models

GIB = 1024**3
Case = tuple[Callable[[], tuple[list[float], str]], float]  # what measures, and the bar of its median in ms
DECISION_MS_MAX = 10.0
PLAN_MS_MAX = 50.0
IDLE_NODES = 100
IDLE_CORE_MAX = 0.05
REQUEST = PlacementRequest(
    model_digest=model().digest, layout=Layout(context_tokens=4096, slots=1, batch_tokens=512), slot_steps=SLOTS_AUTO
)


def time_plan(
    view: ClusterView, weights_gib: float, *, rounds: int, fresh: bool, request: PlacementRequest = REQUEST
) -> tuple[list[float], str]:
    """Return milliseconds of a plan with all reports known, and its result. `fresh`: nodes without earlier plans."""
    reports: dict[MeasureKey, MemoryReport | Fault] = {}
    policy = Policy()
    while isinstance(outcome := plan_placement(request, view, reports, policy), MeasureFirst):
        reports[outcome.key] = counted(outcome.layout, weights=int(weights_gib * GIB), cache=GIB // 8, graph=GIB // 8)
    spent = []
    for _ in range(rounds):
        one = replace(view, nodes=tuple(replace(node) for node in view.nodes)) if fresh else view
        begin = time.process_time()
        plan_placement(request, one, reports, policy)
        spent.append((time.process_time() - begin) * 1000)
    return spent, str(outcome.shape if isinstance(outcome, Placement) else outcome.kind)


def known_cases(rounds: int) -> dict[str, Case]:
    """Plans where speeds are known."""
    roomy, full = known_cluster(used_gib=1), known_cluster(used_gib=12)
    plan = partial(time_plan, rounds=rounds, fresh=True)
    tenant = Constraints(nodes=tuple(one.id for one in roomy.nodes[::4]))
    rack = Constraints(devices=tuple(f"{one.id}/{device.id}" for one in roomy.nodes[100:110] for device in one.devices))
    cases = {
        "one_device": partial(plan, roomy, 8),
        "one_node": partial(plan, full, 100),
        "partial": partial(plan, full, 320),
        "nodes": partial(plan, lending(roomy), 400),
        "layers": partial(plan, roomy, 8, request=replace(REQUEST, constraints=Constraints(num_gpu=20))),
        "tenant": partial(plan, roomy, 8, request=replace(REQUEST, constraints=tenant)),
        "devices": partial(plan, roomy, 8, request=replace(REQUEST, constraints=rack)),
        "refusal": partial(plan, roomy, 2000, request=replace(REQUEST, constraints=Constraints(require_gpu=True))),
    }
    return {f"known_{name}": (measure, PLAN_MS_MAX) for name, measure in cases.items()}


def loaded_world(names: list[str]) -> World:
    """1,000 nodes with a replica each, and room for more."""
    world = World(policy=Policy(keep_alive_ms=-1), sizes_gib={f"digest-{name}": 8 for name in names})
    files = models("m", *names)
    for number in range(NODES):
        devices = (*(gpu(f"gpu-{index}", total=24, free=23) for index in range(DEVICES)), cpu())
        world.nodes[f"n{number}"] = node(f"n{number}", devices=devices, models=files)
        one = runner(f"r{number}", of=files[0])
        memory = counted(one.layout, weights=8 * GIB, cache=GIB // 8, graph=GIB // 8)
        world.runners[one.placement_id] = FakeRunner(node_id=f"n{number}", view=replace(one, memory=memory))
    world.report()
    world.lead()
    world.writes_done()
    return world


def time_loads(rounds: int) -> tuple[list[float], str]:
    """Milliseconds of all that the core does from a request to the placement that is written."""
    names = [f"new{number}" for number in range(rounds)]
    world = loaded_world(names)
    spent = []
    for name in names:
        pending: list[Event] = [EnsureRequested(caller_id=name, model_name=name, context_tokens=None)]
        used, is_placed = 0.0, False
        while pending:
            event = pending.pop()
            begin = time.process_time()
            effects = world.core.handle(event, world.now_s)
            used += time.process_time() - begin
            is_placed = is_placed or any(isinstance(effect, SaveDesired) for effect in effects)
            for effect in effects:
                if isinstance(effect, Measure):
                    report = world.count(effect.key.model_digest, effect.layout)
                    pending.append(MeasureEnded(node_id=effect.node_id, key=effect.key, found=report))
        assert is_placed, name
        spent.append(used * 1000)
    return spent, "one_device"


def time_inventories(rounds: int) -> tuple[list[float], str]:
    """Milliseconds of an inventory in which every node is new to the core."""
    world = loaded_world([])
    nodes = world.views()
    spent = []
    for _ in range(rounds):
        world.now_s += 1.0
        seen = InventorySeen(nodes=tuple(replace(one) for one in nodes), uptime_s=world.uptime_s)
        begin = time.process_time()
        world.core.handle(seen, world.now_s)
        spent.append((time.process_time() - begin) * 1000)
    return spent, ""


def rounded(cost: IdleCost) -> dict[str, float]:
    """For people."""
    return {name: round(value, 4) for name, value in asdict(cost).items()}


def figures(spent: list[float]) -> dict[str, float]:
    """Median and p95, in milliseconds."""
    return {
        "median_ms": round(statistics.median(spent), 3),
        "p95_ms": round(statistics.quantiles(spent, n=20)[-1], 3),
        "rounds": len(spent),
    }


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, write; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.placement", description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--idle-seconds", type=float, default=30.0)
    parser.add_argument("--output", type=Path, default=None, help="instead of bench/results/<date>-placement.json")
    options = parser.parse_args(arguments)
    Collector(time.monotonic())  # as the scheduler's process has it
    empty, full = cluster(used_gib=1), cluster(used_gib=16)
    cases: dict[str, Case] = {
        "decision": (lambda: time_plan(empty, 8, rounds=options.rounds, fresh=False), DECISION_MS_MAX),
        "plan_one_device": (lambda: time_plan(empty, 8, rounds=options.rounds, fresh=True), PLAN_MS_MAX),
        "plan_one_node": (lambda: time_plan(full, 20, rounds=options.rounds, fresh=True), PLAN_MS_MAX),
        "plan_partial": (lambda: time_plan(full, 100, rounds=options.rounds, fresh=True), PLAN_MS_MAX),
        "plan_nodes": (lambda: time_plan(lending(empty), 200, rounds=options.rounds, fresh=True), PLAN_MS_MAX),
        **known_cases(options.rounds),
        "load": (lambda: time_loads(options.rounds), PLAN_MS_MAX),
        "inventory": (lambda: time_inventories(options.rounds), PLAN_MS_MAX),
    }
    summary: dict[str, object] = {}
    missed = []
    for name, (measure, most_ms) in cases.items():
        spent, shape = measure()
        found = figures(spent)
        summary[name] = {**found, "shape": shape, "bar_ms": most_ms}
        print(f"{name:<16} {found['median_ms']:>8.2f} ms median {found['p95_ms']:>8.2f} ms p95  {shape}")
        if found["median_ms"] > most_ms:
            missed.append(name)
    idle = measure_idle(nodes=IDLE_NODES, seconds=options.idle_seconds)
    summary["idle"] = {"core_share": round(idle.total, 4), "bar": IDLE_CORE_MAX, **rounded(idle)}
    print(f"{'idle':<16} {idle.total * 100:>8.2f} % of a core for {IDLE_NODES} nodes: {rounded(idle)}")
    if idle.total > IDLE_CORE_MAX:
        missed.append("idle")
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    path = options.output or ROOT / "bench" / "results" / f"{today}-placement.json"
    summary["bars"] = {name: "missed" if name in missed else "met" for name in (*cases, "idle")}
    result = {
        "what": f"placement over {NODES} nodes x {DEVICES} devices",
        "machine": describe_machine(),
        "summary": summary,
        "bars_missed": missed,
    }
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(f"written to {path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())

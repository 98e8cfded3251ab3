"""Anything may happen in any order: after every event the promises of docs/architecture.md hold.

1. No device is ever promised more bytes than it has.
2. At most one live runner per placement and generation.
3. Every caller is answered exactly once, unless it left first.
6. Nothing healthy is stopped because something else is missing: without leadership there is no command.
"""

from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from scheduler.core.sizes.ledger import overhead_bytes
from scheduler.core.state.load_jobs import UNPLACED
from scheduler.core.state.promises import promises
from scheduler.core.values.faults import Fault
from scheduler.core.values.policy import Policy
from scheduler.core.values.view import SERVING_STATES, STARTING_STATES
from tests.unit.scheduler.builders import cpu, gpu, node
from tests.unit.scheduler.world import World, models

NAMES = ("m", "n", "o", "m", "n", "o", "too-large")
SIZES = {"m": 9, "n": 12, "o": 14, "too-large": 200}


class SchedulerMachine(RuleBasedStateMachine):
    """The core in a world whose hosts, store and network do as they please."""

    callers = Bundle("callers")

    def __init__(self) -> None:
        super().__init__()
        policy = Policy(load_waiters_max=6, keep_alive_ms=60_000, load_stall_s=120)
        self.world = World(policy=policy, sizes_gib={f"digest-{name}": size for name, size in SIZES.items()})
        self.world.cache_gib_per_slot = 0.25
        self.all_nodes = {
            "a": node("a", devices=(cpu(free=24, total=24),), models=models(*SIZES)),
            "b": node("b", devices=(gpu(free=12, total=12), cpu(free=16, total=16)), models=models("m", "n")),
        }
        self.leads = False
        self.calls = 0
        self.unexpected = 0  # commands that came while nobody led

    @initialize()
    def begin(self) -> None:
        self.world.nodes = dict(self.all_nodes)
        self.world.report()
        self.gain()

    def watch(self) -> None:
        """Note commands that come without leadership."""
        if not self.leads:
            self.unexpected += len(self.world.starts) + len(self.world.stops) + len(self.world.writes)

    @rule(target=callers, name=st.sampled_from(NAMES), context=st.sampled_from([None, None, 2048, 6000, 8192]))
    def ensure(self, name: str, context: int | None) -> str:
        self.calls += 1
        caller = f"c{self.calls}"
        self.world.ensure(caller, name, context_tokens=context)
        return caller

    @rule(caller=consumes(callers))
    def leave(self, caller: str) -> None:
        if not self.world.finals(caller):
            self.world.leave(caller)

    @rule(name=st.sampled_from(NAMES))
    def unload(self, name: str) -> None:
        self.calls += 1
        self.world.unload(f"u{self.calls}", name)

    @rule(steps=st.integers(2, 5), telling=st.booleans())
    def surroundings_answer(self, steps: int, telling: bool) -> None:
        """Measurements, writes, starts and loads get as far as `steps` says."""
        world = self.world
        for step in (world.measure_all, world.writes_done, world.hosts_take_starts)[:steps]:
            step()
        for _, fraction in zip(range(steps - 3), (0.5, 1.0), strict=False):
            for placement_id, one in list(world.runners.items()):
                if one.view.state in STARTING_STATES:
                    world.load(placement_id, fraction, telling=telling)

    @rule()
    def everything_goes_well(self) -> None:
        self.world.settle()

    @rule()
    def stop(self) -> None:
        self.world.writes_done()
        self.world.stops_done()

    @rule(busy=st.integers(0, 3))
    def work(self, busy: int) -> None:
        for placement_id, one in self.world.runners.items():
            if one.view.state in SERVING_STATES:
                self.world.work(placement_id, busy=busy)

    @rule(seconds=st.sampled_from([0.5, 3, 12, 40]))
    def time_passes(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @precondition(lambda self: self.world.measures or self.world.writes or self.world.starts)
    @rule(reason=st.sampled_from(["device_memory_exhausted", "model_unavailable", "bad_model_file", "runner_lost"]))
    def something_fails(self, reason: str) -> None:
        """Whatever is next to be answered is refused instead."""
        world = self.world
        if world.starts:
            world.start_fails(world.starts.pop(0).record, Fault(reason=reason, message="words"))
        elif world.writes:
            world.writes_fail(Fault(reason="model_unavailable", message="state store unreachable: timeout"))
        else:
            world.measure_fails(Fault(reason="request_timeout", message="no answer in 20 s"))

    @precondition(lambda self: self.world.runners)
    @rule(data=st.data())
    def runner_dies(self, data: st.DataObject) -> None:
        del self.world.runners[data.draw(st.sampled_from(sorted(self.world.runners)))]
        self.world.report()

    @precondition(lambda self: self.world.runners)
    @rule(trouble=st.sampled_from(["watch", "a", "b", "leader", "process", "store"]))
    def trouble(self, trouble: str) -> None:
        """Something larger breaks; only where there is something to be broken."""
        world = self.world
        match trouble:
            case "watch":
                world.lose_inventory()
            case "a" | "b":
                world.nodes.pop(trouble, None)
                world.report()
            case "leader":
                self.leads = False
                world.lose_leadership()
                world.writes.clear()
            case "process":
                self.restart()
            case "store":
                world.store.clear()

    @rule()
    def recover(self) -> None:
        """Nodes are back, and this scheduler leads, maybe with a new fence."""
        self.world.nodes = dict(self.all_nodes)
        self.world.report()
        self.gain()

    def gain(self) -> None:
        self.leads = True
        self.world.lead()

    def restart(self) -> None:
        waiting = [name for name in self.world.asked if not self.world.finals(name) and name not in self.world.left]
        for caller in waiting:
            self.world.left.add(caller)  # their connections are gone with the process
        self.world.restart_scheduler(prefix=f"r{self.world.fence}-")
        self.leads = False
        self.world.report()

    @invariant()
    def nobody_is_answered_twice_or_after_leaving(self) -> None:
        for caller in self.world.asked:
            finals = self.world.finals(caller)
            assert len(finals) <= 1, f"{caller}: {finals}"

    @invariant()
    def callers_without_an_answer_wait_for_a_load(self) -> None:
        waiting = {one for job in self.world.core.state.jobs.values() for one in job.callers}
        unanswered = {one for one in self.world.asked if not self.world.finals(one) and one not in self.world.left}
        assert waiting == unanswered

    @invariant()
    def no_device_is_promised_more_than_it_has(self) -> None:
        state = self.world.core.state
        reserved = {f"load:{job.id}" for job in state.jobs.values() if job.state in UNPLACED}
        promised: Counter[tuple[str, str]] = Counter()
        for promise in promises(state):
            if promise.placement_id in reserved:
                continue  # a claim on what is still to be freed
            for device_id, count in promise.device_bytes.items():
                promised[promise.node_id, device_id] += count
        for view in state.observed.nodes.values():
            for device in view.devices:
                room = device.total_bytes - overhead_bytes(device, state.policy)
                assert promised[view.id, device.id] <= room, (view.id, device.id, promised[view.id, device.id], room)

    @invariant()
    def no_device_has_to_hold_more_than_it_has(self) -> None:
        """Counted from the processes themselves, whatever the core believes."""
        world = self.world
        held = world.held()
        for view in self.all_nodes.values():
            for device in view.devices:
                assert held[view.id, device.id] <= device.total_bytes, (view.id, device.id, sorted(world.runners))

    @invariant()
    def a_placement_runs_once(self) -> None:
        live = Counter((one.view.placement_id, one.view.generation) for one in self.world.runners.values())
        assert all(count == 1 for count in live.values())
        ordered: dict[tuple[str, int], set[str]] = {}
        for start in self.world.all_starts:
            key = (start.record.placement_id, start.record.generation)
            ordered.setdefault(key, set()).add(start.record.spec_digest)
        assert all(len(specs) == 1 for specs in ordered.values()), "one generation, one spec"

    @invariant()
    def no_command_without_leadership(self) -> None:
        self.watch()
        assert self.unexpected == 0

    @invariant()
    def routes_name_only_what_hosts_report(self) -> None:
        seen = {runner.placement_id for _, runner in self.world.core.state.observed.replicas()}
        for route in self.world.routes:
            assert {replica.runner.placement_id for replica in route.replicas} <= seen

    @invariant()
    def the_queue_of_waiters_is_bounded(self) -> None:
        assert self.world.core.state.waiters() <= self.world.policy.load_waiters_max

    def teardown(self) -> None:
        """Once everybody behaves again, everybody gets an answer."""
        world = self.world
        if not world.nodes and not world.asked:
            return
        world.nodes = dict(self.all_nodes)
        world.report()
        world.lead()
        for _ in range(12):
            world.settle()
            for placement_id in world.runners:
                world.work(placement_id, busy=0)
            world.pass_time(40)
        unanswered = [one for one in world.asked if not world.finals(one) and one not in world.left]
        assert unanswered == []
        assert world.core.state.waiters() == 0


TestSchedulerMachine = pytest.mark.behaviour("B-135", "B-139")(SchedulerMachine.TestCase)
TestSchedulerMachine.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)

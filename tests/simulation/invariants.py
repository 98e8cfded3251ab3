"""Invariants after every event, however large the cluster is.

1. No device is promised more than it has, less what is never promised (rule 1), claims of loads that still evict apart.
2. Processes hold no more than their devices have.
3. One live runner for each placement and generation; nothing is told to a host without the fence of the leader.
4. Every caller has one final answer at most.
5. Nothing is started, or borrowed, on a node that is drained.

What a placement is promised or holds is added when it comes and taken off when it goes. The same is worked out from
nothing every so often, and must be equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scheduler.core.planning.lending import nodes_of
from scheduler.core.sizes.ledger import Promise, overhead_bytes
from scheduler.core.state.effects import (
    AnswerFailed,
    AnswerReady,
    AnswerReplicas,
    Effect,
    SaveDesired,
    StartRunner,
    StopRunner,
)
from scheduler.core.state.events import Event
from scheduler.core.state.load_jobs import UNPLACED
from scheduler.core.state.promises import promises
from scheduler.core.values.desired import Phase

if TYPE_CHECKING:
    from tests.simulation.scale import LargeWorld

FROM_NOTHING_EVERY = 97  # events
Key = tuple[str, str]
Parts = Mapping[Key, int]


@dataclass(slots=True)
class _Sum:
    """Bytes by device, and what each placement adds to them."""

    total: Counter[Key] = field(default_factory=Counter)
    parts: dict[object, tuple[object, Parts]] = field(default_factory=dict)

    def follow(self, present: Mapping[object, tuple[object, Parts]]) -> set[Key]:
        """Take on what is new and off what is gone; `object` says whether it is the same. The devices that grew."""
        grown: set[Key] = set()
        for name in self.parts.keys() - present.keys():
            self.total.subtract(self.parts.pop(name)[1])
        for name, (same, parts) in present.items():
            known = self.parts.get(name)
            if known is not None and known[0] is same:
                continue
            if known is not None:
                self.total.subtract(known[1])
            self.total.update(parts)
            self.parts[name] = same, parts
            grown.update(parts)
        return grown


@dataclass(slots=True)
class Invariants:
    """Follows one world."""

    seed: int
    checked: int = 0
    from_nothing: int = 0
    _promised: _Sum = field(default_factory=_Sum)
    _held: _Sum = field(default_factory=_Sum)
    _answered: set[str] = field(default_factory=set)

    def check(self, world: LargeWorld, event: Event, effects: list[Effect]) -> None:
        """After one event."""
        self.checked += 1
        where = f"seed {self.seed}, event {world.events}, {type(event).__name__}"
        self._check_promises(world, where)
        self._check_held(world, where)
        self._check_effects(world, effects, where)
        if self.checked % FROM_NOTHING_EVERY == 0:
            self._check_sums(world, where)

    def _check_promises(self, world: LargeWorld, where: str) -> None:
        grown = self._promised.follow(_present(world, self._promised.parts))
        policy = world.core.state.policy
        for node_id, device_id in grown:
            device = world.all_nodes[node_id].device(device_id)
            assert device is not None
            count = self._promised.total[node_id, device_id]
            assert count <= device.total_bytes - overhead_bytes(device, policy), f"{where}: {node_id} {device_id}"

    def _check_held(self, world: LargeWorld, where: str) -> None:
        present: dict[object, tuple[object, Parts]] = {}
        for placement_id, one in world.runners.items():
            known = self._held.parts.get(placement_id)
            if known is not None and known[0] is one.view.layout:
                present[placement_id] = known
            else:
                present[placement_id] = one.view.layout, world.bytes_of(placement_id)
        for hog, count in world.hogs.items():
            known = self._held.parts.get(hog)
            present[hog] = known if known is not None and known[1][hog] == count else (object(), {hog: count})
        for node_id, device_id in self._held.follow(present):
            device = world.all_nodes[node_id].device(device_id)
            assert device is not None
            held = self._held.total[node_id, device_id]
            assert held <= device.total_bytes, f"{where}: {node_id} {device_id} holds {held} of {device.total_bytes}"

    def _check_effects(self, world: LargeWorld, effects: list[Effect], where: str) -> None:
        state = world.core.state
        for effect in effects:
            match effect:
                case AnswerReady() | AnswerFailed():
                    for caller in effect.callers:
                        self._answer_once(caller, where)
                case AnswerReplicas():
                    self._answer_once(effect.caller_id, where)
                case StartRunner() | StopRunner():
                    assert state.leadership is not None, where
                    assert effect.fence == state.leadership.fence == world.fence, where
                case SaveDesired() if effect.record.phase is Phase.STARTING:
                    record = effect.record
                    assert state.drains.keys().isdisjoint(nodes_of(record.node_id, record.layout)), where
                case _:
                    pass

    def _answer_once(self, caller: str, where: str) -> None:
        if caller == "operator":
            return
        assert caller not in self._answered, f"{where}: {caller} is answered twice"
        self._answered.add(caller)

    def _check_sums(self, world: LargeWorld, where: str) -> None:
        """Sums that were followed are those of everything there is, worked out anew."""
        self.from_nothing += 1
        anew: Counter[Key] = Counter()
        for _, parts in _present(world, {}).values():
            anew.update(parts)
        assert +self._promised.total == +anew, where
        assert +self._held.total == +world.held(), where


def _present(world: LargeWorld, known: Mapping[object, tuple[object, Parts]]) -> dict[object, tuple[object, Parts]]:
    """Return the present promises by placement and node; unchanged ones are the same objects as in `known`."""
    state = world.core.state
    claims = {
        f"load:{job.id}" if job.record is None else job.record.placement_id
        for job in state.jobs.values()
        if job.state in UNPLACED and job.placement is not None
    }
    present: dict[object, tuple[object, Parts]] = {}
    for promise in promises(state):
        if promise.placement_id not in claims:
            name = (promise.placement_id, promise.node_id)
            assert name not in present, f"{name} is promised twice"
            before = known.get(name)
            present[name] = before if before is not None and before[0] == promise else (promise, _parts(promise))
    return present


def _parts(promise: Promise) -> Parts:
    return {(promise.node_id, device_id): count for device_id, count in promise.device_bytes.items()}

"""The rules of docs/architecture.md, looked at in every run."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from gateway.core.dispatch.admission import waiting_max
from gateway.core.dispatch.resume import CRASHES_MAX
from gateway.core.request.answers import FinishReason
from runner.serve.streams import WAITING_MAX
from scheduler.core.sizes.ledger import overhead_bytes
from scheduler.core.state.effects import Effect, SaveDesired, StartRunner
from scheduler.core.state.load_jobs import UNPLACED
from scheduler.core.state.promises import promises
from tests.simulation.cluster.gateway_process import QUEUE_MAX
from tests.simulation.cluster.runner_process import Vocabulary

if TYPE_CHECKING:
    from tests.simulation.cluster.episode import Asked, Episode
    from tests.simulation.cluster.runner_process import RunnerProcess
    from tests.simulation.cluster.scheduler_process import SimScheduler

LOOK_S = 1.0
POISONED_MAX = 2
BUSY_S = 12.0  # longer than a scheduler's view may be behind what is so


class Violation(AssertionError):
    """A rule is broken."""


class Checks:
    """Looks at one episode."""

    def __init__(self, episode: Episode) -> None:
        self._episode = episode
        self._fences: Counter[str] = Counter()
        self._leaks: Counter[str] = Counter()  # looks that found more sequences than calls, by runner
        self._busy_since_s: dict[str, float] = {}
        self._on_probation: dict[str, list[str]] = {}  # gateways whose suspect was computed when a replica ended
        self._poisoned: Counter[int] = Counter()  # runners that a request has ended, by its number

    def _fail(self, text: str) -> None:
        violation = Violation(f"at {self._episode.loop.time():.3f} s: {text}")
        self._episode.network.bugs.append(violation)  # whatever becomes of the task that finds it
        raise violation

    def on_handled(self, scheduler: SimScheduler, effects: list[Effect]) -> None:
        """Rule 1: no device is promised more than it has."""
        if not any(isinstance(effect, SaveDesired | StartRunner) for effect in effects):
            return
        state = scheduler.core.state
        claims = {
            f"load:{job.id}" if job.record is None else job.record.placement_id
            for job in state.jobs.values()
            if job.state in UNPLACED and job.placement is not None
        }
        promised: Counter[tuple[str, str]] = Counter()
        for promise in promises(state):
            if promise.placement_id not in claims:
                promised.update({(promise.node_id, name): count for name, count in promise.device_bytes.items()})
        for node in state.observed.nodes.values():
            for device in node.devices:
                most = device.total_bytes - overhead_bytes(device, state.policy)
                if promised[node.id, device.id] > most:
                    self._fail(f"rule 1: {node.id} {device.id} is promised {promised[node.id, device.id]} of {most}")

    def on_obey(self, node_id: str, fence: int) -> None:
        """Rule 2: the fences that a host obeys only rise."""
        if fence < self._fences[node_id]:
            self._fail(f"rule 2: {node_id} obeys fence {fence} after {self._fences[node_id]}")
        self._fences[node_id] = fence
        self._episode.note(node_id, fence)

    def on_start(self, runner: RunnerProcess) -> None:
        """Rule 2: one live runner per placement and generation; rule 1 for real bytes."""
        placement = runner.record.placement
        same = [
            one
            for one in self._episode.runners()
            if one.record.placement.placement_id == placement.placement_id
            and one.record.placement.generation == placement.generation
        ]
        if len(same) > 1:
            self._fail(f"rule 2: {len(same)} runners of {placement.placement_id}.{placement.generation}")
        node = self._episode.nodes[runner.place]
        totals = node.totals()
        for device_id, count in node.held().items():
            if count > totals[device_id]:
                self._fail(f"rule 1: processes take {count} of {totals[device_id]} of {node.id} {device_id}")

    def on_stop(self, runner: RunnerProcess) -> None:
        """Rule 6: what has served for a while is not stopped."""
        since_s = self._busy_since_s.get(runner.record.placement.incarnation, self._episode.loop.time())
        if runner.alive and not runner.paused and self._episode.loop.time() - since_s > BUSY_S:
            self._fail(f"rule 6: {runner.name} is stopped, busy since {since_s:.1f} s")

    def on_poisoned(self, runner: RunnerProcess, numbers: list[int]) -> None:
        """A request that ended two runners is not tried a third time.

        Of several requests none is surely to blame, and a gateway blames the one that is on probation there.
        """
        placement = runner.record.placement
        key = f"{placement.placement_id}/{placement.generation}/{placement.incarnation}"
        on_probation = self._on_probation[key] = [
            gateway.name
            for gateway in self._episode.gateways.values()
            if (connection := gateway.dispatcher.pool._connections.get(key)) is not None
            and connection.suspect is not None
            and connection.suspect.is_computed
        ]
        if len(on_probation) > 1:
            self._fail(f"blame: {runner.name} ends with suspects of {on_probation}")
        if len(numbers) != 1:
            return
        asked = self._episode.asked[numbers[0]]
        if not self._poisoned[asked.number] and asked.gateway.name in on_probation:
            return
        self._poisoned[asked.number] += 1
        if self._poisoned[asked.number] > POISONED_MAX:
            self._fail(f"poison: request {asked.number} has ended {self._poisoned[asked.number]} runners")

    def on_quarantined(self, asked: Asked, crashed: list[str]) -> None:
        """A second crash ends no request that had a suspect beside it. `crashed`: replicas that it is blamed for."""
        others = [name for name in self._on_probation.get(crashed[-1], ()) if name != asked.gateway.name]
        if len(crashed) < CRASHES_MAX and others:
            self._fail(f"blame: request {asked.number} is refused for a crash on probation at {others}")

    def on_tokens(self, asked: Asked) -> None:
        """Rule 4: the tokens are the beginning of the undisturbed answer."""
        expected = asked.expected
        if asked.tokens != expected[: len(asked.tokens)]:
            self._fail(f"rule 4: request {asked.number} got {asked.tokens} instead of {expected}")

    def on_done(self, asked: Asked) -> None:
        """Rule 4: nothing is missing at the end."""
        expected = asked.expected
        text = b"".join(Vocabulary.pieces[token] for token in expected).decode()
        if asked.tokens != expected or asked.text != text:
            self._fail(f"rule 4: request {asked.number} ended with {asked.tokens} instead of {expected}")
        assert asked.done is not None
        reason = FinishReason.LENGTH if len(expected) == asked.max_tokens else FinishReason.END_TOKEN
        counted = len(expected) + (reason is FinishReason.END_TOKEN)  # runners count the end token
        if asked.done.reason is not reason or asked.done.usage.completion_tokens != counted:
            self._fail(f"rule 3: request {asked.number} ended with {asked.done}, expected {reason} after {counted}")

    async def watch(self) -> None:
        """Look at rules 5 and 7 every second."""
        while True:
            await asyncio.sleep(LOOK_S)
            for gateway in self._episode.gateways.values():
                for key, depth in gateway.dispatcher.depths().items():
                    if depth > waiting_max(slots_total=10_000, queue_max=QUEUE_MAX):
                        self._fail(f"rule 7: {depth} requests wait for {key} at {gateway.name}")
            for runner in self._episode.runners():
                if runner.streams.inside > runner.streams.slots + WAITING_MAX:
                    self._fail(f"rule 7: {runner.streams.inside} requests are inside {runner.name}")
                self._look_at_slots(runner)

    def _look_at_slots(self, runner: RunnerProcess) -> None:
        """Rule 5: a slot is free once its call has ended."""
        life, inside = runner.record.placement.incarnation, runner.streams.inside
        self._leaks[life] = self._leaks[life] + 1 if inside > runner.calls and not runner.paused else 0
        if self._leaks[life] > 1:
            self._fail(f"rule 5: {runner.name} has {inside} sequences for {runner.calls} calls")
        if inside and not runner.paused:
            self._busy_since_s.setdefault(life, self._episode.loop.time())
        else:
            self._busy_since_s.pop(life, None)

    def at_end(self) -> None:
        """Rules 3 and 5: everything has ended, and everything is free."""
        episode = self._episode
        for asked in episode.asked:
            if not asked.outcome:
                self._fail(f"rule 3: request {asked.number} never ended")
        for runner in episode.runners():
            if runner.streams.inside or runner.engine.table.busy:
                self._fail(f"rule 5: {runner.engine.table.busy} slots of {runner.name} are busy without a request")
        for gateway in episode.gateways.values():
            if gateway.dispatcher.depths():
                self._fail(f"rule 7: requests wait at {gateway.name} for ever: {gateway.dispatcher.depths()}")
            for connection in gateway.dispatcher.pool._connections.values():
                if connection.load.in_flight or connection.streams.calls:
                    self._fail(f"rule 5: {gateway.name} counts requests at {connection.info.key} that have ended")
        if len(episode.hosts) == len(episode.nodes) and not any(
            scheduler.leadership.fence for scheduler in episode.schedulers.values()
        ):
            self._fail("no scheduler leads although everything is there")

"""Reports of hosts and discovery, and the time for which silence does not contradict them.

- A broken watch freezes the view: nothing disappears, figures age.
- A node that left the inventory, or is suspect there, stays as suspect for `node_lost_s`, and for as long as runners of
  it answer when they are asked themselves: a host may die without them, and be back in a moment. A young discovery does
  not know all nodes yet, so its silence does not count at all. A suspect node that was given up counts again once it
  reports: the connection of a machine that stands still may last for a minute.
- A runner that its host reported ready counts at once, before the inventory shows it.
- A node that came and went more than three times in a minute is damped for half a minute.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from scheduler.core.values.policy import Policy
from scheduler.core.values.view import SERVING_STATES, STARTING_STATES, NodeView, RunnerView

START_SEEN_S = 3.0  # until an inventory must show a runner that its host has reported ready
INVENTORY_SILENT_S = 8.0  # more if no inventory comes: by then a watch that hangs is known to be broken
DISCOVERY_YOUNG_S = 10.0

# Changes of a node: it goes (or is suspect), and it comes.
CHANGES_MAX = 3
CHANGES_S = 60.0
DAMPED_S = 30.0

# Hosts report once a second: figures of one that has not reported for so long are older than they look.
LATE_S = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Started:
    node_id: str
    runner: RunnerView
    until_s: float


@dataclass(slots=True, kw_only=True)
class Observed:
    """Mutable; owned by the core."""

    policy: Policy
    nodes: dict[str, NodeView] = field(default_factory=dict)
    was_seen: bool = False
    received_at_s: float = 0.0
    uptime_s: float = 0.0
    frozen_since_s: float | None = None
    silent: frozenset[str] = frozenset()  # nodes that had nothing to say in the last inventory
    _heard_s: dict[str, float] = field(default_factory=dict)  # node id → when a report of it was received
    _missing: dict[str, float] = field(default_factory=dict)  # node id → when it left the inventory or became suspect
    _given_up: set[str] = field(default_factory=set)  # nodes that the inventory still lists
    _changes: dict[str, list[float]] = field(default_factory=dict)  # node id → when it came or went, of the last minute
    _asked: dict[str, float] = field(default_factory=dict)  # node id → when its runners were asked last
    _answered: dict[tuple[str, int], float] = field(default_factory=dict)  # placement, generation → when it answered
    _started: dict[str, _Started] = field(default_factory=dict)
    _hosting: list[NodeView] | None = None  # nodes that have runners; None: to be made from `nodes`
    _index: dict[str, tuple[str, RunnerView]] | None = None  # by placement id; None: to be made from `nodes`

    def see_inventory(
        self,
        nodes: tuple[NodeView, ...],
        uptime_s: float,
        now_s: float,
        *,
        silent: frozenset[str] = frozenset(),
        removed: frozenset[str] = frozenset(),
    ) -> None:
        """Take in an inventory; `silent` nodes have not reported since the one before, `removed` ones will not."""
        self.silent = silent
        self._heard_s = {node.id: self._heard_s.get(node.id, now_s) if node.id in silent else now_s for node in nodes}
        self._given_up &= {node.id for node in nodes if node.suspect}
        nodes = tuple(node for node in nodes if node.id not in self._given_up)
        present = {node.id: node for node in nodes}
        self._see_deaths(present)
        if not self.is_young and uptime_s >= DISCOVERY_YOUNG_S:
            self._count_changes({node.id for node in nodes if not node.suspect}, now_s)
        for node_id, node in self.nodes.items():
            if node_id in removed:
                self._missing.pop(node_id, None)
                self._asked.pop(node_id, None)
                self._changes.pop(node_id, None)
            elif node_id not in present:
                self._missing.setdefault(node_id, now_s)
                present[node_id] = replace(node, suspect=True, is_damped=False)
        for node in nodes:
            if node.suspect:
                self._missing.setdefault(node.id, now_s)
            elif self._missing or self._asked:
                self._missing.pop(node.id, None)
                self._asked.pop(node.id, None)
            for runner in node.runners:
                self._catch_up(runner)
                if not node.suspect:
                    self._answered.pop((runner.placement_id, runner.generation), None)
        self.nodes, self._index, self._hosting = self._damp(present, now_s), None, None
        self.was_seen = True
        self.received_at_s, self.uptime_s, self.frozen_since_s = now_s, uptime_s, None
        self.expire(now_s)

    def _count_changes(self, there: set[str], now_s: float) -> None:
        """Note which nodes came or went; `there` are those that report."""
        for node_id in there ^ (self.nodes.keys() - self._missing.keys()) if self.was_seen else ():
            self._changes.setdefault(node_id, []).append(now_s)
        for node_id, times in list(self._changes.items()):
            self._changes[node_id] = [at_s for at_s in times if now_s - at_s < CHANGES_S]
            if not self._changes[node_id]:
                del self._changes[node_id]

    def _damp(self, nodes: dict[str, NodeView], now_s: float) -> dict[str, NodeView]:
        """Mark the nodes that come and go."""
        for node_id, times in self._changes.items():
            if len(times) > CHANGES_MAX and now_s - times[-1] < DAMPED_S and node_id in nodes:
                nodes[node_id] = replace(nodes[node_id], is_damped=True)
        return nodes

    def lose_inventory(self, now_s: float) -> None:
        """Mark the inventory as lost: the watch broke."""
        if self.frozen_since_s is None:
            self.frozen_since_s = now_s

    def see_start(self, node_id: str, runner: RunnerView, now_s: float) -> None:
        """Take in a host's report on a start, ahead of the inventory."""
        until_s = now_s + START_SEEN_S
        self._started[runner.placement_id] = _Started(node_id=node_id, runner=runner, until_s=until_s)

    def forget_start(self, placement_id: str) -> None:
        """Forget the reports about a start."""
        self._started.pop(placement_id, None)

    def hear(self, placement_id: str, generation: int, now_s: float) -> None:
        """Take in the answer of a runner itself."""
        self._answered[placement_id, generation] = now_s

    def runners_to_ask(self, now_s: float) -> list[tuple[str, RunnerView]]:
        """Return the runners of lost nodes that are due to be probed again, with the ids of their nodes."""
        due: list[tuple[str, RunnerView]] = []
        for node_id in self._missing:
            if self.frozen_since_s is None and now_s >= self._ask_at_s(node_id):
                self._asked[node_id] = now_s
                due += [(node_id, runner) for runner in self.nodes[node_id].runners if runner.state in SERVING_STATES]
        return due

    def expire(self, now_s: float) -> None:
        """Let go of what was contradicted for long enough."""
        for node_id in [node_id for node_id in self._missing if now_s >= self._lost_at_s(node_id)]:
            if self.frozen_since_s is None:
                self._expire_node(node_id, now_s)
        for placement_id in [one for one, started in self._started.items() if self._is_contradicted(started, now_s)]:
            del self._started[placement_id]

    def _is_contradicted(self, started: _Started, now_s: float) -> bool:
        """Return True if a later inventory lacks the started runner, or none has arrived in time."""
        node = self.nodes.get(started.node_id)
        if self.frozen_since_s is not None or (node is not None and node.suspect):
            return False
        return self.received_at_s >= started.until_s or now_s >= started.until_s + INVENTORY_SILENT_S

    def _expire_node(self, node_id: str, now_s: float) -> None:
        node, self._index, self._hosting = self.nodes[node_id], None, None
        alive = tuple(one for one in node.runners if now_s < self._silent_at_s(one))
        self.nodes[node_id] = replace(node, runners=alive)
        for gone in set(node.runners) - set(alive):
            self._answered.pop((gone.placement_id, gone.generation), None)
        if not alive:
            del self._missing[node_id]
            del self.nodes[node_id]
            self._asked.pop(node_id, None)
            self._given_up.add(node_id)

    def _silent_at_s(self, runner: RunnerView) -> float:
        answered_s = self._answered.get((runner.placement_id, runner.generation))
        return 0.0 if answered_s is None else answered_s + self.policy.node_lost_s

    def _ask_at_s(self, node_id: str) -> float:
        return self._asked.get(node_id, self._missing[node_id]) + self.policy.runner_asked_s

    def wake_at_s(self) -> Iterator[float]:
        """Yield the moments at which time alone changes something; some may have passed."""
        moments: list[float] = []
        if self.frozen_since_s is None:
            moments += [one.until_s + INVENTORY_SILENT_S for one in self._started.values()]
            for node_id in self._missing:
                moments += [self._lost_at_s(node_id), self._ask_at_s(node_id)]
                moments += [self._silent_at_s(runner) for runner in self.nodes[node_id].runners]
        yield from moments

    def _lost_at_s(self, node_id: str) -> float:
        grown_up_s = self.received_at_s + max(0.0, DISCOVERY_YOUNG_S - self.uptime_s)
        return max(self._missing[node_id] + self.policy.node_lost_s, grown_up_s)

    @property
    def is_young(self) -> bool:
        """Return True if discovery may not know every node yet."""
        return self.uptime_s < DISCOVERY_YOUNG_S

    @property
    def is_complete(self) -> bool:
        """Return True if live reports show every node that there is."""
        return self.was_seen and not self.is_young and self.frozen_since_s is None

    def is_current(self, node_id: str) -> bool:
        """Return True if the node's reports are live: only then does a missing runner mean that it is gone."""
        node = self.nodes.get(node_id)
        return self.frozen_since_s is None and node is not None and not node.suspect

    def node_views(self, now_s: float) -> tuple[NodeView, ...]:
        """Return the nodes with the present ages of their figures."""
        if self.frozen_since_s is None and self.received_at_s - min(self._heard_s.values(), default=0.0) < LATE_S:
            return tuple(self.nodes.values())
        frozen_s = 0.0 if self.frozen_since_s is None else now_s - self.frozen_since_s
        return tuple(self._aged(node, frozen_s) for node in self.nodes.values())

    def _aged(self, node: NodeView, frozen_s: float) -> NodeView:
        unheard_s = self.received_at_s - self._heard_s.get(node.id, self.received_at_s)
        more_s = frozen_s + (unheard_s if unheard_s >= LATE_S else 0.0)
        return replace(node, report_age_s=node.report_age_s + more_s) if more_s else node

    def replicas(self) -> Iterator[tuple[str, RunnerView]]:
        """Yield every runner with its node. A reported start counts until the inventory has caught up."""
        seen = set()
        if self._hosting is None:
            self._hosting = [node for node in self.nodes.values() if node.runners]
        for node in self._hosting:
            for runner in node.runners:
                seen.add(runner.placement_id)
                yield node.id, self._newer(runner)
        for placement_id, started in self._started.items():
            if placement_id not in seen and started.node_id in self.nodes:
                yield started.node_id, started.runner

    def replica(self, placement_id: str) -> tuple[str, RunnerView] | None:
        """Return one runner and its node."""
        if self._index is None:
            # Backwards, so that of two nodes that show the same one the first counts, as it does in `replicas`.
            self._index = {
                runner.placement_id: (node.id, runner)
                for node in reversed(self.nodes.values())
                for runner in reversed(node.runners)
            }
        if (found := self._index.get(placement_id)) is not None:
            return found[0], self._newer(found[1])
        started = self._started.get(placement_id)
        return (started.node_id, started.runner) if started is not None and started.node_id in self.nodes else None

    def _see_deaths(self, present: dict[str, NodeView]) -> None:
        """Record as gone each runner that the inventory listed and lists no more, whatever its start has reported."""
        for node_id, before in self.nodes.items():
            if not before.runners or node_id not in present or present[node_id] is before:
                continue
            now = {(runner.placement_id, runner.generation) for runner in present[node_id].runners}
            for runner in before.runners:
                started = self._started.get(runner.placement_id)
                key = (runner.placement_id, runner.generation)
                if started is not None and key not in now and started.runner.generation == runner.generation:
                    del self._started[runner.placement_id]

    def _catch_up(self, runner: RunnerView) -> None:
        """Drop the report of a start that the inventory has caught up with: from here on that alone counts."""
        started = self._started.get(runner.placement_id)
        if started is not None and self._newer(runner) is runner:
            del self._started[runner.placement_id]

    def _newer(self, runner: RunnerView) -> RunnerView:
        started = self._started.get(runner.placement_id)
        if started is None or started.runner.generation < runner.generation:
            return runner
        is_behind = runner.generation < started.runner.generation or runner.state in STARTING_STATES
        return started.runner if is_behind else runner

"""Routing table of gateways: every model, and the replicas that hosts report. Never a merely desired one."""

import operator
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from scheduler.core.values.view import SERVING_STATES, STARTING_STATES, ModelFile, NodeView, RunnerView, cached_per_view


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAlias:
    """Both names as people wrote them, with tags. The target is a model, never another alias."""

    name: str
    target: str


LATEST = ":latest"
# Reports arrive with some jitter, which moves a computed expiry although nothing has happened.
EXPIRY_JITTER_S = 1.5

SHOWN_STATES = SERVING_STATES | STARTING_STATES


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRoute:
    """A replica that gateways may use, or that is about to be one (its state says which)."""

    node_id: str
    runner: RunnerView
    device_names: tuple[str, ...]
    expires_at_s: float | None  # on the core's clock; None: it is busy or not ready; infinite: it stays


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRoute:
    """A model and its replicas."""

    model: ModelFile
    replicas: tuple[ReplicaRoute, ...]


def find_model(nodes: Sequence[NodeView], name: str) -> ModelFile | None:
    """Return the file of a name: a usable one before a broken one, then the newest."""
    names = {name, with_tag(name)}
    found = [model for node in nodes for one in names for model in _files_by_name(node).get(one, ())]
    return max(found, key=_preference, default=None)


@cached_per_view
def _files_by_name(node: NodeView) -> Mapping[str, Sequence[ModelFile]]:
    found: dict[str, list[ModelFile]] = {}
    for model in node.models:
        found.setdefault(model.name, []).append(model)
    return found


def with_tag(name: str) -> str:
    """Return the name with the default tag if it has none."""
    return name if ":" in name.rpartition("/")[2] else name + LATEST


def _preference(model: ModelFile) -> tuple[bool, int, str]:
    return not model.error, model.modified_at_unix_s, model.digest


@dataclass(slots=True)
class KnownTable:
    """Still valid part of the previous table: rows of nodes without news are kept."""

    _nodes: tuple[NodeView, ...] = ()
    _files: dict[str, ModelFile] = field(default_factory=dict)
    _replicas: dict[str, tuple[NodeView | None, ReplicaRoute]] = field(default_factory=dict)  # by placement
    _routes: dict[str, ModelRoute] = field(default_factory=dict)  # by model name

    def of(self, nodes: Sequence[NodeView]) -> Mapping[str, ModelFile]:
        """Return the files by name, in order."""
        if len(nodes) != len(self._nodes) or any(
            one.models is not other.models for one, other in zip(nodes, self._nodes, strict=True)
        ):
            self._nodes, self._files = tuple(nodes), dict(sorted(named_files(nodes).items()))
        return self._files

    def replica(self, node_id: str, node: NodeView | None, runner: RunnerView, expiry_s: float | None) -> ReplicaRoute:
        """Return the route of a replica: the same object for as long as nothing about it changes."""
        known = self._replicas.get(runner.placement_id)
        if known is not None and known[0] is node and known[1].runner is runner:
            route = known[1]
            if route.expires_at_s == expiry_s and route.node_id == node_id:
                return route
        route = ReplicaRoute(
            node_id=node_id, runner=runner, device_names=device_names(node, runner), expires_at_s=expiry_s
        )
        self._replicas[runner.placement_id] = node, route
        return route

    def route(self, name: str, model: ModelFile, replicas: list[ReplicaRoute]) -> ModelRoute:
        """Return the route of a model, likewise the same object."""
        known = self._routes.get(name)
        if known is None or known.model is not model or not _are_same(known.replicas, replicas):
            known = self._routes[name] = ModelRoute(model=model, replicas=tuple(replicas))
        return known

    def forget_others(self, placements: AbstractSet[str]) -> None:
        """Drop replicas and models that are gone."""
        if len(self._replicas) > len(placements):
            self._replicas = {one: known for one, known in self._replicas.items() if one in placements}
        if len(self._routes) > len(self._files):
            self._routes = {name: known for name, known in self._routes.items() if name in self._files}


def _are_same(one: Sequence[ReplicaRoute], other: Sequence[ReplicaRoute]) -> bool:
    return len(one) == len(other) and all(map(operator.is_, one, other))


def named_files(nodes: Sequence[NodeView]) -> dict[str, ModelFile]:
    """Return the file of each name."""
    files: dict[str, ModelFile] = {}
    for node in nodes:
        for model in node.models:
            known = files.get(model.name)
            if known is None or _preference(model) > _preference(known):
                files[model.name] = model
    return files


def build_routes(
    nodes: Mapping[str, NodeView],
    replicas: Sequence[tuple[str, RunnerView]],
    *,
    hidden: AbstractSet[str],
    expiries: Mapping[str, float | None],
    known: KnownTable | None = None,
) -> tuple[ModelRoute, ...]:
    """Build the whole table, by model name. `hidden`: placements that take nothing new; `known`: the table before."""
    known = KnownTable() if known is None else known
    models = known.of(tuple(nodes.values()))
    by_digest: dict[str, list[ReplicaRoute]] = {}
    for node_id, runner in replicas:
        if runner.state not in SHOWN_STATES or runner.placement_id in hidden:
            continue
        route = known.replica(node_id, nodes.get(node_id), runner, expiries.get(runner.placement_id))
        by_digest.setdefault(runner.model_digest, []).append(route)
    for routes in by_digest.values():
        if len(routes) > 1:
            routes.sort(key=_placement_id)
    nothing: list[ReplicaRoute] = []
    table = tuple(known.route(name, model, by_digest.get(model.digest, nothing)) for name, model in models.items())
    known.forget_others({runner.placement_id for _, runner in replicas})
    return table


def _placement_id(route: ReplicaRoute) -> str:
    return route.runner.placement_id


def device_names(node: NodeView | None, runner: RunnerView) -> tuple[str, ...]:
    """Return the names of a replica's devices, in layer order."""
    if not runner.layout.devices:
        return ("CPU",)
    found = [node.device(layers.device_id) if node is not None else None for layers in runner.layout.devices]
    return tuple(
        device.name if device is not None else layers.device_id
        for device, layers in zip(found, runner.layout.devices, strict=True)
    )


def is_same_table(old: Sequence[ModelRoute], new: Sequence[ModelRoute]) -> bool:
    """Return True if tables are equal but for the time that has passed and the progress of loads."""
    return len(old) == len(new) and all(_is_same_route(one, other) for one, other in zip(old, new, strict=True))


def _is_same_route(old: ModelRoute, new: ModelRoute) -> bool:
    return old is new or (
        old.model == new.model
        and len(old.replicas) == len(new.replicas)
        and all(_is_same_replica(one, other) for one, other in zip(old.replicas, new.replicas, strict=True))
    )


def _is_same_replica(old: ReplicaRoute, new: ReplicaRoute) -> bool:
    if old is new or (old.runner is new.runner and old == new):
        return True
    if (old.expires_at_s is None) != (new.expires_at_s is None):
        return False
    if abs((old.expires_at_s or 0.0) - (new.expires_at_s or 0.0)) > EXPIRY_JITTER_S:
        return False
    # Callers get the progress of a load elsewhere; a table for every percent would flood all watchers.
    runner = replace(new.runner, idle_ms=old.runner.idle_ms, load_fraction=old.runner.load_fraction)
    return replace(new, expires_at_s=old.expires_at_s, runner=runner) == old

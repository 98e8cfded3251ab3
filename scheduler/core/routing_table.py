"""What gateways are told: every model, and the replicas that hosts report. Never what is merely wanted."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from scheduler.core.view import SERVING_STATES, STARTING_STATES, ModelFile, NodeView, RunnerView

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
    expires_at_s: float | None  # on the core's clock; None: never, or busy


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRoute:
    """A model and its replicas."""

    model: ModelFile
    replicas: tuple[ReplicaRoute, ...]


def find_model(nodes: Sequence[NodeView], name: str) -> ModelFile | None:
    """The file that a name means: a usable one before a broken one, then the newest."""
    tagged = with_tag(name)
    found = [model for node in nodes for model in node.models if model.name in (name, tagged)]
    return max(found, key=_preference, default=None)


def with_tag(name: str) -> str:
    """The name with the tag that is meant when none is given."""
    return name if ":" in name.rpartition("/")[2] else name + LATEST


def _preference(model: ModelFile) -> tuple[bool, int, str]:
    return not model.error, model.modified_at_unix_s, model.digest


@dataclass(slots=True)
class NamedFiles:
    """The file that each name means, worked out anew only when other files are reported: thousands of nodes have it."""

    _nodes: tuple[NodeView, ...] = ()
    _files: dict[str, ModelFile] = field(default_factory=dict)

    def of(self, nodes: Sequence[NodeView]) -> Mapping[str, ModelFile]:
        """By name."""
        if len(nodes) != len(self._nodes) or any(
            one.models is not other.models for one, other in zip(nodes, self._nodes, strict=True)
        ):
            self._nodes, self._files = tuple(nodes), named_files(nodes)
        return self._files


def named_files(nodes: Sequence[NodeView]) -> dict[str, ModelFile]:
    """The file that each name means."""
    files: dict[str, ModelFile] = {}
    for node in nodes:
        for model in node.models:
            known = files.get(model.name)
            if known is None or _preference(model) > _preference(known):
                files[model.name] = model
    return files


def build_routes(
    nodes: Sequence[NodeView],
    replicas: Sequence[tuple[str, RunnerView]],
    *,
    hidden: AbstractSet[str],
    expiries: Mapping[str, float | None],
    files: NamedFiles | None = None,
) -> tuple[ModelRoute, ...]:
    """The whole table, by model name. `hidden` are placements that take nothing new."""
    models = named_files(nodes) if files is None else files.of(nodes)
    by_id = {node.id: node for node in nodes}
    by_digest: dict[str, list[ReplicaRoute]] = {}
    for node_id, runner in replicas:
        if runner.state not in SHOWN_STATES or runner.placement_id in hidden:
            continue
        route = ReplicaRoute(
            node_id=node_id,
            runner=runner,
            device_names=device_names(by_id.get(node_id), runner),
            expires_at_s=expiries.get(runner.placement_id),
        )
        by_digest.setdefault(runner.model_digest, []).append(route)
    for routes in by_digest.values():
        routes.sort(key=lambda route: route.runner.placement_id)
    return tuple(
        ModelRoute(model=models[name], replicas=tuple(by_digest.get(models[name].digest, ())))
        for name in sorted(models)
    )


def device_names(node: NodeView | None, runner: RunnerView) -> tuple[str, ...]:
    """The devices of a replica for people, in layer order."""
    if not runner.layout.devices:
        return ("CPU",)
    found = [node.device(layers.device_id) if node is not None else None for layers in runner.layout.devices]
    return tuple(
        device.name if device is not None else layers.device_id
        for device, layers in zip(found, runner.layout.devices, strict=True)
    )


def is_same_table(old: Sequence[ModelRoute], new: Sequence[ModelRoute]) -> bool:
    """Whether watchers would learn nothing: equal but for the time that has passed and the progress of loads."""
    return len(old) == len(new) and all(_is_same_route(one, other) for one, other in zip(old, new, strict=True))


def _is_same_route(old: ModelRoute, new: ModelRoute) -> bool:
    return (
        old.model == new.model
        and len(old.replicas) == len(new.replicas)
        and all(_is_same_replica(one, other) for one, other in zip(old.replicas, new.replicas, strict=True))
    )


def _is_same_replica(old: ReplicaRoute, new: ReplicaRoute) -> bool:
    if old.runner is new.runner and old == new:
        return True
    if (old.expires_at_s is None) != (new.expires_at_s is None):
        return False
    if abs((old.expires_at_s or 0.0) - (new.expires_at_s or 0.0)) > EXPIRY_JITTER_S:
        return False
    # How far a load is, its callers hear elsewhere; a table for every percent would drown everybody else.
    runner = replace(new.runner, idle_ms=old.runner.idle_ms, load_fraction=old.runner.load_fraction)
    return replace(new, expires_at_s=old.expires_at_s, runner=runner) == old

"""Constraints, load options and explanations between protos and the core's values."""

from collections.abc import Mapping, Sequence

from common.errors import InvalidRequest
from common.spec import codecs
from common.spec.codec import Codec
from protos import cluster_pb2, scheduler_pb2
from scheduler.converters import SPEED_SOURCES
from scheduler.core.planning.candidates import Candidate, Placement, Refusal, Verdict
from scheduler.core.planning.explanation import Explanation, ReplicaMemory, VictimView
from scheduler.core.sizes.ledger import Available, LentTo, Need
from scheduler.core.values.constraint_fields import SHARE_MAX, default_replicas_max, parse_constraint
from scheduler.core.values.constraint_origins import AppliedConstraint
from scheduler.core.values.constraints import Constraints, ModelConstraints, Shape
from scheduler.core.values.memory import MemoryOrigin

CHOSEN = "chosen"

_CONSTRAINTS = Codec(Constraints, scheduler_pb2.Constraints, partial=True)
_EXPLANATIONS = Codec(
    Explanation,
    scheduler_pb2.Explanation,
    nested={
        "victims": Codec(VictimView, scheduler_pb2.ExplainedVictim),
        "replicas": Codec(ReplicaMemory, scheduler_pb2.ExplainedReplica, nested={"speculation": codecs.SPECULATION}),
        "constraints": Codec(AppliedConstraint, scheduler_pb2.AppliedConstraint),
    },
    partial=True,
)
_CANDIDATES = Codec(Candidate, scheduler_pb2.ExplainedCandidate, partial=True)
_NEEDS = Codec(Need, scheduler_pb2.ExplainedDevice, partial=True)
_AVAILABLE = Codec(
    Available,
    scheduler_pb2.ExplainedDevice,
    nested={"lent_to": Codec(LentTo, scheduler_pb2.LentTo)},
    partial=True,
)


def to_constraints(wire: scheduler_pb2.Constraints) -> Constraints:
    """Convert the constraints that an operator sets on a model.

    Raises:
        InvalidRequest: a name that this build does not know, or a contradiction; `param` is the constraint.
    """
    for name in ("cache_type_k", "cache_type_v"):
        parse_constraint(name, getattr(wire, name))
    if not all(0 <= share <= SHARE_MAX for share in wire.tensor_split):  # nan is neither
        raise InvalidRequest(f'"tensor_split" must be a list of numbers from 0 to {SHARE_MAX}', param="tensor_split")
    return _CONSTRAINTS.from_proto(
        wire,
        max_shape=parse_constraint("max_shape", wire.max_shape or Shape.CPU),
        policy=parse_constraint("policy", wire.policy) if wire.policy else None,
        max_bytes=tuple(sorted(wire.max_bytes.items())),
        replicas_max=wire.replicas_max or default_replicas_max(wire.replicas_min),
        flash_attention=codecs.FLASH_ATTENTION.find(wire.flash_attention),
    )


def _told_max(constraints: Constraints) -> int:
    is_default = constraints.replicas_max == default_replicas_max(constraints.replicas_min)
    return 0 if is_default else constraints.replicas_max


def from_constraints(constraints: Constraints) -> scheduler_pb2.Constraints:
    """Return the same for the wire."""
    return _CONSTRAINTS.to_proto(
        constraints,
        max_shape=constraints.max_shape.value if constraints.max_shape is not Shape.CPU else "",
        policy=constraints.policy,
        max_bytes=dict(constraints.max_bytes),
        replicas_max=_told_max(constraints),
        flash_attention=codecs.FLASH_ATTENTION.to_proto(constraints.flash_attention),
    )


def from_model_constraints(model: ModelConstraints) -> scheduler_pb2.ModelConstraints:
    """Return the constraints of one model for the wire."""
    return scheduler_pb2.ModelConstraints(
        model_name=model.model_name,
        constraints=from_constraints(model.constraints),
        from_file=model.from_file,
        defaults=from_constraints(model.defaults),
    )


def from_explanation(
    explanation: Explanation, crash_rows: Sequence[cluster_pb2.CrashRow] = ()
) -> scheduler_pb2.Explanation:
    """Return an explanation for the wire; the chosen candidate first. `crash_rows` are its own, for the wire."""
    decision = explanation.decision
    placement = decision if isinstance(decision, Placement) else None
    candidates = [_candidate(one, explanation, placement) for one in explanation.candidates]
    candidates.sort(key=lambda one: (one.verdict != CHOSEN, one.verdict != Verdict.FITS, one.node_id))
    return _EXPLANATIONS.to_proto(
        explanation,
        age_ms=round(explanation.age_s * 1000),
        candidates=candidates,
        layout=codecs.LAYOUT.to_proto(placement.layout) if placement is not None else None,
        would_fit=decision.nearest if isinstance(decision, Refusal) else (),
        measure_rounds=placement.rounds if placement is not None else explanation.rounds,
        crash_rows=crash_rows,
    )


def _candidate(
    candidate: Candidate, explanation: Explanation, placement: Placement | None
) -> scheduler_pb2.ExplainedCandidate:
    is_chosen = (
        placement is not None
        and candidate.verdict is Verdict.FITS
        and (candidate.node_id, candidate.shape) == (placement.node_id, placement.shape)
        and candidate.needs == placement.needs
    )
    return _CANDIDATES.to_proto(
        candidate,
        shape=candidate.shape,
        verdict=CHOSEN if is_chosen else candidate.verdict.value,
        devices=_devices(candidate, explanation),
        estimated=candidate.origin is MemoryOrigin.ESTIMATED,
    )


def _devices(candidate: Candidate, explanation: Explanation) -> list[scheduler_pb2.ExplainedDevice]:
    names = explanation.device_names
    if not candidate.needs and candidate.available:  # nothing was laid there, and what there is is shown
        return [_device(candidate, have, names) for have in candidate.available]
    if not candidate.needs:
        return [
            scheduler_pb2.ExplainedDevice(
                device_id=one, node_id=candidate.node_id, name=names.get((candidate.node_id, one), "")
            )
            for one in candidate.device_ids
        ]
    on_host = len(candidate.needs) - len(candidate.device_layers)  # of the runner's node, and of every lender
    layers = (*candidate.device_layers, *(0 for _ in range(on_host)))
    return [
        _device(candidate, have, names, need, count)
        for need, have, count in zip(candidate.needs, candidate.available, layers, strict=True)
    ]


def _device(
    candidate: Candidate,
    have: Available,
    names: Mapping[tuple[str, str], str],
    need: Need | None = None,
    layers: int = 0,
) -> scheduler_pb2.ExplainedDevice:
    node_id = have.node_id or candidate.node_id
    shown = _AVAILABLE.to_proto(
        have,
        node_id=node_id,
        name=names.get((node_id, have.device_id), ""),
        layers=layers,
        limit=have.limit,
        free_source=have.source,
        free_age_ms=round(have.age_s * 1000),
        rank_bytes_s=round(have.speed_bytes_s),
        rank_source=SPEED_SOURCES.to_proto(have.speed_source),
    )
    if need is not None:
        shown.MergeFrom(_NEEDS.to_proto(need, node_id=node_id, need_bytes=need.total_bytes))
    return shown

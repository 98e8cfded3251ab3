"""Constraints, load options and explanations between protos and the core's values."""

from collections.abc import Mapping, Sequence

from common.errors import InvalidRequest
from common.spec import codecs
from protos import cluster_pb2, scheduler_pb2
from scheduler.converters import SPEED_SOURCES, from_layout
from scheduler.core.planning.candidates import Candidate, Placement, Refusal, Verdict
from scheduler.core.planning.explanation import Explanation
from scheduler.core.sizes.ledger import Available, Need
from scheduler.core.values.constraint_fields import CACHE_TYPES, SHARE_MAX, default_replicas_max
from scheduler.core.values.constraints import Constraints, FillPolicy, ModelConstraints, Shape
from scheduler.core.values.memory import MemoryOrigin

CHOSEN = "chosen"


def to_constraints(wire: scheduler_pb2.Constraints) -> Constraints:
    """Convert the constraints that an operator sets on a model.

    Raises:
        InvalidRequest: a name that this build does not know, or a contradiction; `param` is the constraint.
    """
    for name in ("cache_type_k", "cache_type_v"):
        if getattr(wire, name) not in CACHE_TYPES:
            raise InvalidRequest(f'"{name}" must be one of {", ".join(CACHE_TYPES[1:])}', param=name)
    if not all(0 <= share <= SHARE_MAX for share in wire.tensor_split):  # nan is neither
        raise InvalidRequest(f'"tensor_split" must be a list of numbers from 0 to {SHARE_MAX}', param="tensor_split")
    return Constraints(
        nodes=tuple(wire.nodes),
        devices=tuple(wire.devices),
        backend=wire.backend,
        max_shape=_shape(wire.max_shape),
        policy=_policy(wire.policy),
        tensor_split=tuple(wire.tensor_split),
        num_gpu=wire.num_gpu if wire.HasField("num_gpu") else None,
        main_gpu=wire.main_gpu if wire.HasField("main_gpu") else None,
        require_gpu=wire.require_gpu,
        max_bytes=tuple(sorted(wire.max_bytes.items())),
        replicas_min=wire.replicas_min,
        replicas_max=wire.replicas_max or default_replicas_max(wire.replicas_min),
        pinned=wire.pinned,
        priority=wire.priority,
        preload=wire.preload,
        keep_alive_ms=wire.keep_alive_ms if wire.HasField("keep_alive_ms") else None,
        slots=wire.slots,
        context_tokens=wire.context_tokens,
        batch_tokens=wire.batch_tokens,
        threads=wire.threads,
        cache_type_k=wire.cache_type_k,
        cache_type_v=wire.cache_type_v,
        flash_attention=codecs.FLASH_ATTENTION.find(wire.flash_attention),
        use_mmap=wire.use_mmap if wire.HasField("use_mmap") else None,
    )


def _shape(name: str) -> Shape:
    try:
        return Shape(name) if name else Shape.CPU
    except ValueError as error:
        raise InvalidRequest(f'"max_shape" must be one of {", ".join(Shape)}', param="max_shape") from error


def _policy(name: str) -> FillPolicy | None:
    try:
        return FillPolicy(name) if name else None
    except ValueError as error:
        raise InvalidRequest(f'"policy" must be one of {", ".join(FillPolicy)}', param="policy") from error


def _told_max(constraints: Constraints) -> int:
    is_default = constraints.replicas_max == default_replicas_max(constraints.replicas_min)
    return 0 if is_default else constraints.replicas_max


def from_constraints(constraints: Constraints) -> scheduler_pb2.Constraints:
    """Return the same for the wire."""
    return scheduler_pb2.Constraints(
        nodes=constraints.nodes,
        devices=constraints.devices,
        backend=constraints.backend,
        max_shape=constraints.max_shape.value if constraints.max_shape is not Shape.CPU else "",
        policy=constraints.policy.value if constraints.policy is not None else "",
        tensor_split=constraints.tensor_split,
        num_gpu=constraints.num_gpu,
        main_gpu=constraints.main_gpu,
        require_gpu=constraints.require_gpu,
        max_bytes=dict(constraints.max_bytes),
        replicas_min=constraints.replicas_min,
        replicas_max=_told_max(constraints),
        pinned=constraints.pinned,
        priority=constraints.priority,
        preload=constraints.preload,
        keep_alive_ms=constraints.keep_alive_ms,
        slots=constraints.slots,
        context_tokens=constraints.context_tokens,
        batch_tokens=constraints.batch_tokens,
        threads=constraints.threads,
        cache_type_k=constraints.cache_type_k,
        cache_type_v=constraints.cache_type_v,
        flash_attention=codecs.FLASH_ATTENTION.to_proto(constraints.flash_attention),
        use_mmap=constraints.use_mmap,
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
    return scheduler_pb2.Explanation(
        model_name=explanation.model_name,
        model_digest=explanation.model_digest,
        hypothetical=explanation.hypothetical,
        age_ms=round(explanation.age_s * 1000),
        outcome=explanation.outcome,
        message=explanation.message,
        candidates=candidates,
        victims=[
            scheduler_pb2.ExplainedVictim(
                placement_id=one.placement_id, model_name=one.model_name, node_id=one.node_id, loss=one.loss
            )
            for one in explanation.victims
        ],
        layout=from_layout(placement.layout) if placement is not None else None,
        would_fit=decision.nearest if isinstance(decision, Refusal) else (),
        measure_rounds=placement.rounds if placement is not None else explanation.rounds,
        attempts=explanation.attempts,
        replicas=[
            scheduler_pb2.ExplainedReplica(
                placement_id=one.placement_id,
                node_id=one.node_id,
                device_names=one.device_names,
                context_tokens=one.context_tokens,
                predicted_bytes=one.predicted_bytes,
                allocated_bytes=one.allocated_bytes,
                pinned=one.pinned,
            )
            for one in explanation.replicas
        ],
        waits_for=explanation.waits_for,
        constraints=[
            scheduler_pb2.AppliedConstraint(name=one.name, value=one.value, origin=one.origin.value)
            for one in explanation.constraints
        ],
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
    return scheduler_pb2.ExplainedCandidate(
        node_id=candidate.node_id,
        shape=candidate.shape.value if candidate.shape is not None else "",
        verdict=CHOSEN if is_chosen else candidate.verdict.value,
        reason=candidate.reason,
        slots=candidate.slots,
        devices=_devices(candidate, explanation),
        estimated=candidate.origin is MemoryOrigin.ESTIMATED,
        context_tokens=candidate.context_tokens,
        layer_count=candidate.layer_count,
        expected_s=candidate.expected_s,
    )


def _devices(candidate: Candidate, explanation: Explanation) -> list[scheduler_pb2.ExplainedDevice]:
    names = explanation.device_names
    if not candidate.needs and candidate.available:  # nothing was laid there, and what there is is shown
        return [
            _device(_no_need(have.device_id), have, (have.node_id or candidate.node_id, have.device_id), names, 0)
            for have in candidate.available
        ]
    if not candidate.needs:
        ids = candidate.device_ids or (candidate.device_id,)
        return [
            scheduler_pb2.ExplainedDevice(
                device_id=one, node_id=candidate.node_id, name=names.get((candidate.node_id, one), "")
            )
            for one in ids
        ]
    on_host = len(candidate.needs) - len(candidate.device_layers)  # of the runner's node, and of every lender
    layers = (*candidate.device_layers, *(0 for _ in range(on_host)))
    return [
        _device(need, have, (need.node_id or candidate.node_id, need.device_id), names, count)
        for need, have, count in zip(candidate.needs, candidate.available, layers, strict=True)
    ]


def _no_need(device_id: str) -> Need:
    return Need(device_id=device_id, weights_bytes=0, cache_bytes=0, graph_bytes=0, reserve_bytes=0, margin_bytes=0)


def _device(
    need: Need,
    have: Available,
    key: tuple[str, str],
    names: Mapping[tuple[str, str], str],
    layers: int,
) -> scheduler_pb2.ExplainedDevice:
    return scheduler_pb2.ExplainedDevice(
        node_id=key[0],
        device_id=key[1],
        name=names.get(key, ""),
        layers=layers,
        weights_bytes=need.weights_bytes,
        cache_bytes=need.cache_bytes,
        graph_bytes=need.graph_bytes,
        projector_bytes=need.projector_bytes,
        reserve_bytes=need.reserve_bytes,
        margin_bytes=need.margin_bytes,
        need_bytes=need.total_bytes,
        available_bytes=have.available_bytes,
        free_bytes=have.free_bytes,
        promised_bytes=have.promised_bytes,
        overhead_bytes=have.overhead_bytes,
        free_source=have.source,
        free_age_ms=round(have.age_s * 1000),
        total_bytes=have.total_bytes,
        backoff_bytes=have.backoff_bytes,
        limit=have.limit.value,
        max_bytes=have.max_bytes,
        pool_id=have.pool_id,
        lent_to=[
            scheduler_pb2.LentTo(placement_id=one.placement_id, model_name=one.model_name, node_id=one.node_id)
            for one in have.lent_to
        ],
        rank_bytes_s=round(have.speed_bytes_s),
        rank_source=SPEED_SOURCES.to_proto(have.speed_source),
    )

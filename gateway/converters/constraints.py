"""Constraints and explanations between protos and JSON."""

from collections.abc import Mapping
from typing import Any

from common.errors import InvalidRequest
from common.spec import codecs
from common.spec.layout import FlashAttention
from gateway.converters.inventory import ranked_speed, shown
from gateway.core.request.durations import FOREVER_MS, parse_keep_alive_ms
from protos import cluster_pb2, scheduler_pb2

_FLASH = {"": 0, **{one.value: codecs.FLASH_ATTENTION.to_proto(one) for one in FlashAttention}}
_FLASH_NAMES = {number: name for name, number in _FLASH.items() if name}
# Our name for people → the contract's, where they differ.
_WIRE_NAMES = {"num_ctx": "context_tokens", "num_batch": "batch_tokens", "num_thread": "threads"}
_OWN_NAMES = {wire: name for name, wire in _WIRE_NAMES.items()}
_TRANSLATED = frozenset({"keep_alive", "flash_attention"})


def constraints_to_proto(model_name: str, wanted: Mapping[str, Any]) -> scheduler_pb2.ModelConstraints:
    """Translate a model's constraints, named as in `PUT /puna/v1/placements/{model}`; None sets nothing.

    Raises:
        InvalidRequest: keep_alive is no duration, or flash_attention is none of its values.
    """
    flash_attention = wanted["flash_attention"]
    if flash_attention not in _FLASH:
        raise InvalidRequest("flash_attention must be auto, on or off", param="flash_attention")
    fields = {name: value for name, value in wanted.items() if name not in _TRANSLATED and value is not None}
    wire = scheduler_pb2.Constraints(**{_WIRE_NAMES.get(name, name): value for name, value in fields.items()})
    wire.flash_attention = _FLASH[flash_attention]
    keep_alive_ms = parse_keep_alive_ms(wanted["keep_alive"])
    if keep_alive_ms is not None:
        wire.keep_alive_ms = keep_alive_ms
    return scheduler_pb2.ModelConstraints(model_name=model_name, constraints=wire)


def constraints_from_proto(model: scheduler_pb2.ModelConstraints) -> dict[str, object]:
    """Return a model's constraints and the defaults that hold beside them as JSON; unset values are left out."""
    return {
        "model": model.model_name,
        "from_file": model.from_file,
        "constraints": _shown(model.constraints),
        "defaults": _shown(model.defaults),
    }


def _shown(wire: scheduler_pb2.Constraints) -> dict[str, object]:
    found: dict[str, object] = {}
    for field, value in wire.ListFields():
        match field.name:
            case "keep_alive_ms":
                found["keep_alive"] = -1 if value <= FOREVER_MS else value / 1000
            case "flash_attention":
                if value in _FLASH_NAMES:
                    found["flash_attention"] = _FLASH_NAMES[value]
            case "max_bytes":
                found["max_bytes"] = dict(value)
            case "nodes" | "devices" as name:
                found[name] = list(value)
            case "tensor_split":
                found["tensor_split"] = [round(share, 6) for share in value]
            case name:
                found[_OWN_NAMES.get(name, name)] = value
    return found


def explanation_from_proto(explanation: scheduler_pb2.Explanation) -> dict[str, object]:
    """Translate a decision to JSON."""
    return {
        **shown(explanation, without=("age_ms", "candidates", "layout")),
        "age_s": explanation.age_ms / 1000,
        "candidates": [_candidate(one) for one in explanation.candidates],
        "layout": _layout(explanation.layout) if explanation.HasField("layout") else None,
    }


def _candidate(candidate: scheduler_pb2.ExplainedCandidate) -> dict[str, object]:
    return {
        **shown(candidate, without=("expected_s", "devices")),
        "seconds_per_token": round(candidate.expected_s, 6) or None,
        "devices": [
            {
                **shown(device, without=("pool_id", "rank_bytes_s", "rank_source")),
                "pool": device.pool_id or None,
                **ranked_speed(device.rank_bytes_s, device.rank_source),
            }
            for device in candidate.devices
        ],
    }


def _layout(layout: cluster_pb2.Layout) -> dict[str, object]:
    return {
        "devices": [{"device": one.device_id, "layers": one.layer_count} for one in layout.devices],
        "context_length": layout.context_tokens,
        "slots": layout.slots,
        "num_batch": layout.batch_tokens,
        "cache_type_k": layout.cache_type_k,
        "cache_type_v": layout.cache_type_v,
        "pipeline": layout.pipeline,
    }

"""Records of the store, as JSON that only grows. Unknown fields of a newer build are ignored."""

from dataclasses import asdict, fields
from typing import Any

import orjson

from common.errors import InvalidRequest
from common.spec import codecs
from common.spec.layout import Layout
from scheduler.converters import MEMORY_REPORT
from scheduler.core.sizes.margins import LOADS_KEPT, MarginKey, Margins
from scheduler.core.values.asked import Asked
from scheduler.core.values.constraint_fields import FIELD_NAMES, parse_constraints, written_constraints
from scheduler.core.values.constraints import Constraints
from scheduler.core.values.desired import DesiredPlacement, Phase
from scheduler.core.values.memory import MemoryReport
from scheduler.core.values.routing_table import ModelAlias


def encode(record: DesiredPlacement) -> str:
    """Return a record as JSON."""
    written = {field.name: getattr(record, field.name) for field in fields(record)}
    written |= {"spec_digest": record.spec_digest, "layout": codecs.LAYOUT.to_json(record.layout)}
    return orjson.dumps(written, option=orjson.OPT_SORT_KEYS).decode()


def decode(text: str | bytes) -> DesiredPlacement:
    """Return a record from JSON.

    Raises:
        ValueError: it is none; nothing can be concluded from it.
    """
    try:
        fields = orjson.loads(text)
        planned = fields.get("planned")
        return DesiredPlacement(
            placement_id=str(fields["placement_id"]),
            generation=int(fields["generation"]),
            phase=Phase(fields["phase"]),
            node_id=str(fields["node_id"]),
            model_name=str(fields["model_name"]),
            model_digest=str(fields["model_digest"]),
            layout=_layout(fields["layout"]),
            planned=_report(planned) if planned is not None else None,
            keep_alive_ms=fields.get("keep_alive_ms"),
            keep_alive_heard=int(fields.get("keep_alive_heard", 0)),
            asked=_asked(fields.get("asked") or {}),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a placement record: {error}") from error


def encode_constraints(constraints: Constraints) -> str:
    """Constraints as JSON, under the names that people write."""
    return orjson.dumps(written_constraints(constraints), option=orjson.OPT_SORT_KEYS).decode()


def decode_constraints(text: str | bytes) -> Constraints:
    """Constraints from JSON.

    Raises:
        ValueError: they are none.
    """
    try:
        fields = orjson.loads(text)
        return parse_constraints({name: value for name, value in fields.items() if name in FIELD_NAMES})
    except (TypeError, AttributeError, InvalidRequest) as error:
        raise ValueError(f"not a record of constraints: {error}") from error


def encode_margins(margins: Margins) -> dict[str, str]:
    """Encode learned margins, each as JSON under a name of its own."""
    pieces: dict[str, dict[str, object]] = {
        f"loads/{key.build}/{key.architecture}/{key.device_kind}{'/split' if key.is_split else ''}": {
            **asdict(key),
            "residuals": residuals,
            "shares": margins.shares.get(key, ()),
        }
        for key, residuals in margins.residuals.items()
    }
    for (digest, kind), extra in margins.exhausted.items():
        pieces[f"exhausted/{digest}/{kind}"] = {"model_digest": digest, "device_kind": kind, "extra_bytes": extra}
    return {name: orjson.dumps(fields, option=orjson.OPT_SORT_KEYS).decode() for name, fields in pieces.items()}


def decode_margins(text: str | bytes) -> Margins:
    """One piece of what was learned.

    Raises:
        ValueError: it is none.
    """
    try:
        fields = orjson.loads(text)
        kind = str(fields["device_kind"])
        if "model_digest" in fields:
            return Margins(exhausted={(str(fields["model_digest"]), kind): int(fields["extra_bytes"])})
        key = MarginKey(
            build=str(fields["build"]),
            architecture=str(fields["architecture"]),
            device_kind=kind,
            is_split=bool(fields.get("is_split", False)),
        )
        residuals = tuple(int(count) for count in fields["residuals"])[-LOADS_KEPT:]
        shares = tuple(float(share) for share in fields.get("shares", ()))[-LOADS_KEPT:]
        return Margins(residuals={key: residuals}, shares={key: shares})
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a record of margins: {error}") from error


def _asked(fields: dict[str, Any]) -> Asked:
    options = fields.get("options") or {}
    return Asked(
        context_tokens=fields.get("context_tokens"),
        options=codecs.LOAD_OPTIONS.from_json(options),
    )


def _layout(fields: dict[str, Any]) -> Layout:
    for name in ("devices", "context_tokens", "slots", "batch_tokens"):
        fields[name]  # every version has written them: a record without one is broken
    return codecs.LAYOUT.from_json(fields)


def _report(fields: dict[str, Any]) -> MemoryReport:
    for part in (*fields["devices"], fields["host"]):
        for name in ("device_id", "weights_bytes", "cache_bytes", "graph_bytes"):
            part[name]  # likewise
    return MEMORY_REPORT.from_json(fields)


def encode_drain(budget_s: float) -> str:
    """Return a drain as JSON."""
    return orjson.dumps({"budget_s": budget_s}).decode()


def decode_drain(text: str | bytes) -> float:
    """Decode the time that sequences may take to end.

    Raises:
        ValueError, KeyError, TypeError: this is no record of a drain.
    """
    return float(orjson.loads(text)["budget_s"])


def encode_alias(alias: ModelAlias) -> str:
    """Return an alias as JSON."""
    return orjson.dumps(alias).decode()


def decode_alias(text: str | bytes) -> ModelAlias | None:
    """Return an alias from JSON; None: the record that only says that there may be some.

    Raises:
        ValueError, KeyError, TypeError: this is no record of an alias.
    """
    fields = orjson.loads(text)
    return ModelAlias(name=str(fields["name"]), target=str(fields["target"])) if fields else None

"""The gateway's JSON as rows for people. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cli.core.formatting import crash_text, format_bytes, format_since, format_span, format_until, lent_text
from cli.core.news import short_digest

LOADED_HEADINGS = ("NAME", "DIGEST", "SIZE", "DEVICES", "CONTEXT", "SLOTS", "NODE", "STATE", "UNTIL")
DEVICE_HEADINGS = (
    *("NODE", "STATE", "DEVICE", "KIND", "DEVICE STATE", "TOTAL", "FREE", "READ FROM"),
    *("PROMISED", "RESERVED", "LIMIT", "SPEED", "RUNNERS", "STORE FREE", "SAVED", "LENT TO", "CARD", "REASON"),
)
# What a narrow terminal goes without, the first first.
DEVICE_SPARE = (
    "STORE FREE",
    "SAVED",
    "SPEED",
    "LIMIT",
    "RESERVED",
    "KIND",
    "READ FROM",
    "PROMISED",
    "RUNNERS",
    "LENT TO",
    "CARD",
)
LOADED_SPARE = ("DIGEST", "CONTEXT", "SIZE")
MODEL_SPARE = ("MODIFIED", "DIGEST", "QUANTIZATION")
MODEL_HEADINGS = ("NAME", "DIGEST", "SIZE", "PARAMETERS", "QUANTIZATION", "CAN", "MODIFIED")
ALIAS_HEADINGS = ("ALIAS", "MODEL", "STATE")
CONSTRAINT_HEADINGS = ("MODEL", "SET BY", "CONSTRAINTS")

Json = Mapping[str, Any]


def loaded_rows(models: Iterable[Json], *, now_unix_s: float) -> list[tuple[str, ...]]:
    """One row per replica of GET /api/ps; a model whose server names no replicas has one row."""
    rows: list[tuple[str, ...]] = []
    for model in models:
        for replica in model.get("replicas") or [{}]:
            devices = replica.get("devices") or []
            until = replica.get("expires_at", model.get("expires_at"))
            rows.append(
                (
                    str(model.get("name", "")),
                    short_digest(str(model.get("digest", ""))),
                    format_bytes(_replica_bytes(model, devices)),
                    ", ".join(str(device.get("name", "")) for device in devices) or "CPU",
                    str(replica.get("context_length") or model.get("context_length") or ""),
                    f"{replica['slots_busy']}/{replica['slots_total']}" if "slots_total" in replica else "",
                    str(replica.get("node", "")),
                    ": ".join(str(replica[name]) for name in ("state", "reason") if replica.get(name)),
                    format_until(until, now_unix_s=now_unix_s),
                )
            )
    return rows


def crashed_rows(rows: Iterable[Json], *, now_unix_s: float) -> list[tuple[str, ...]]:
    """One row like those of `loaded_rows` per model that crashes on a node, for what is said of its next load."""
    return [
        (
            *(str(row.get("model", "")), "", "", "", "", "", str(row.get("node", ""))),
            *(crash_text(row, now_unix_s=now_unix_s), ""),
        )
        for row in rows
    ]


def device_rows(nodes: Sequence[Json], *, now_unix_s: float) -> list[tuple[str, ...]]:
    """One row per device of GET /puna/v1/nodes, and one per model that crashes; a node without devices has one row."""
    devices = [
        (
            str(node.get("id", "")),
            str(node.get("state", "")),
            str(device.get("name", "")),
            str(device.get("library", "")),
            str(device.get("state", "")),
            _bytes(device, "total_bytes"),
            _bytes(device, "free_bytes"),
            _source(device),
            _bytes(device, "promised_bytes"),
            _bytes(device, "reserve_bytes"),
            _bytes(device, "max_bytes"),
            _speed(device),
            _runners(node.get("runners") or []),
            _bytes(node.get("store") or {}, "free_bytes"),
            ", ".join(_saved(tier) for tier in node.get("states") or []),
            ", ".join(lent_text(one) for one in device.get("lent_to") or []),
            _condition(device.get("vitals") or {}, now_unix_s=now_unix_s),
            str(device.get("state_reason") or ""),
        )
        for node in nodes
        for device in node.get("devices") or [{}]
    ]
    empty = ("",) * (len(DEVICE_HEADINGS) - 3)
    crashes = [
        (
            *(str(node.get("id", "")), str(node.get("state", "")), *empty),
            f"{row.get('model')} {crash_text(row, now_unix_s=now_unix_s)}: {row.get('error')}",
        )
        for node in nodes
        for row in node.get("crash_rows") or []
    ]
    return [*devices, *crashes]


def model_table(models: Sequence[Json], *, now_unix_s: float) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return headings and one row per model of GET /api/tags; a last column if some cannot be used says why."""
    rows, reasons = model_rows(models, now_unix_s=now_unix_s), [str(model.get("error") or "") for model in models]
    if not any(reasons):
        return MODEL_HEADINGS, rows
    return (*MODEL_HEADINGS, "REASON"), [(*row, reason) for row, reason in zip(rows, reasons, strict=True)]


def model_rows(models: Iterable[Json], *, now_unix_s: float) -> list[tuple[str, ...]]:
    """One row per model of GET /api/tags."""
    rows: list[tuple[str, ...]] = []
    for model in models:
        details = model.get("details") or {}
        modified = model.get("modified_at")
        rows.append(
            (
                str(model.get("name", "")),
                short_digest(str(model.get("digest", ""))),
                format_bytes(int(model.get("size") or 0)),
                str(details.get("parameter_size", "")),
                str(details.get("quantization_level", "")),
                ", ".join(model.get("capabilities") or []),
                format_since(modified, now_unix_s=now_unix_s) if modified else "",
            )
        )
    return rows


def alias_rows(aliases: Iterable[Json]) -> list[tuple[str, ...]]:
    """One row per alias of GET /puna/v1/aliases."""
    return [
        (str(one.get("alias", "")), str(one.get("model", "")), "" if one.get("exists", True) else "no node has it")
        for one in aliases
    ]


def constraint_rows(models: Iterable[Json]) -> list[tuple[str, ...]]:
    """One row per model of GET /puna/v1/placements that something is set for."""
    return [
        (
            str(model.get("model", "")),
            "file" if model.get("from_file") else "command",
            " ".join(
                [*_words(model.get("constraints")), *(f"{one} (default)" for one in _words(model.get("defaults")))]
            ),
        )
        for model in models
    ]


def _words(constraints: Json | None) -> list[str]:
    return [_word(name, value) for name, value in sorted((constraints or {}).items())]


def _word(name: str, value: Any) -> str:
    """Return a constraint as it is written on the command line."""
    match value:
        case True:
            return name
        case list():
            return f"{name}={','.join(str(one) for one in value)}"
        case dict():
            return f"{name}={','.join(f'{label}:{size}' for label, size in value.items())}"
        case _:
            return f"{name}={value}"


def _replica_bytes(model: Json, devices: Iterable[Json]) -> int:
    """Sum the replica's bytes on its devices; the model's sum if the server does not split it."""
    own = [int(device["bytes"]) for device in devices if "bytes" in device]
    return sum(own) if own else int(model.get("size") or 0)


def _bytes(device: Json, name: str) -> str:
    return format_bytes(int(device[name])) if device.get(name) is not None else ""


def _runners(runners: Sequence[Json]) -> str:
    """Format how many there are, and how many of them do not answer: "2 (1 silent)"."""
    silent = sum(runner.get("state") == "not_responding" for runner in runners)
    return f"{len(runners)} ({silent} silent)" if silent else str(len(runners))


def _saved(tier: Json) -> str:
    """Format what is used of a tier of saved states: "ram 120 MB of 1.2 GB"."""
    return f"{tier.get('tier')} {_bytes(tier, 'bytes')} of {_bytes(tier, 'max_bytes')}"


def _speed(device: Json) -> str:
    """Format a device's speed and the source of it: "550 GB/s, replicas"."""
    speed = device.get("speed_bytes_s")
    return f"{format_bytes(round(speed))}/s, {device.get('speed_source') or 'unknown'}" if speed else ""


def _condition(vitals: Json, *, now_unix_s: float) -> str:
    """Format what a card's driver reports, faults last: "12 % busy, 54 °C, 71 W, Xid 79 4 minutes ago"."""
    parts = []
    if vitals.get("utilization") is not None:
        parts.append(f"{vitals['utilization']:.0%} busy")
    if vitals.get("temperature_c") is not None:
        parts.append(f"{vitals['temperature_c']} °C")
    if vitals.get("power_w") is not None:
        parts.append(f"{vitals['power_w']:.0f} W")
    parts += [f"throttled: {reason}" for reason in vitals.get("throttled") or []]
    if errors := vitals.get("ecc_uncorrected"):
        parts.append(f"{errors} uncorrected ECC errors")
    if xid := vitals.get("last_xid"):
        parts.append(f"Xid {xid} {format_span(max(0.0, now_unix_s - vitals['last_xid_at_unix_s']))} ago")
    return ", ".join(parts)


def _source(device: Json) -> str:
    """Format the source and the age of the free figure, and its trust unless it was measured."""
    if not device.get("free_source"):
        return ""
    age_s = (device.get("free_age_ms") or 0) / 1000
    trust = device.get("trust", "measured")
    return f"{device['free_source']}, {age_s:.1f} s ago" + (f", {trust}" if trust != "measured" else "")

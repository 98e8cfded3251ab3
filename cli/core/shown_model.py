"""POST /api/show as tables. Pure."""

from collections.abc import Mapping
from typing import Any

from cli.core.formatting import format_bytes

Rows = list[tuple[str, str]]
_TEXT_LINES_MAX = 8
# Texts of POST /api/show that can be printed alone.
TEXTS = ("modelfile", "parameters", "template", "system", "license")


def sections(name: str, shown: Mapping[str, Any]) -> list[tuple[str, Rows]]:
    """Title and rows of every section that has something to say."""
    found = [
        ("Model", _model_rows(name, shown)),
        ("Capabilities", [(str(one), "") for one in shown.get("capabilities") or []]),
        ("Parameters", _parameter_rows(str(shown.get("parameters") or ""))),
        ("Projector", _projector_rows(shown.get("projector_info") or {})),
        ("Loaded", _loaded_rows((shown.get("puna") or {}).get("measured") or [])),
        ("System", _text_rows(shown.get("system"))),
        ("Messages", [(str(one.get("role")), _one_line(one.get("content"))) for one in shown.get("messages") or []]),
        ("License", _text_rows(shown.get("license"))),
    ]
    return [(title, rows) for title, rows in found if rows]


def _model_rows(name: str, shown: Mapping[str, Any]) -> Rows:
    info, details = shown.get("model_info") or {}, shown.get("details") or {}
    architecture = str(info.get("general.architecture") or details.get("family") or "")
    puna = shown.get("puna") or {}
    rows = {
        "name": name,
        "architecture": architecture,
        "parameters": details.get("parameter_size"),
        "context length": info.get(f"{architecture}.context_length"),
        "embedding length": info.get(f"{architecture}.embedding_length"),
        "quantization": details.get("quantization_level"),
        "made from": details.get("parent_model"),
        "template": puna.get("template_source"),
        "weights": str(puna.get("digest") or "")[:12],
    }
    return [(label, str(value)) for label, value in rows.items() if value]


def _parameter_rows(text: str) -> Rows:
    return [(label, value.strip()) for label, _, value in (line.partition(" ") for line in text.splitlines())]


def _projector_rows(info: Mapping[str, Any]) -> Rows:
    return [(key, str(value)) for key, value in sorted(info.items()) if not isinstance(value, list | dict)]


def _loaded_rows(measured: list[Mapping[str, Any]]) -> Rows:
    rows: Rows = []
    for report in measured:
        parts = [f"{device.get('name')} {format_bytes(int(device.get('bytes') or 0))}" for device in report["devices"]]
        if report.get("host_bytes"):
            parts.append(f"RAM {format_bytes(int(report['host_bytes']))}")
        size = f"{report.get('slots')} × {report.get('context_length')} tokens"
        rows.append((f"{size} on {report.get('node')}", ", ".join(parts)))
    return rows


def _text_rows(text: object) -> Rows:
    lines = str(text or "").strip().splitlines()
    rows = [(line, "") for line in lines[:_TEXT_LINES_MAX]]
    return [*rows, ("…", "")] if len(lines) > _TEXT_LINES_MAX else rows


def _one_line(text: object) -> str:
    return " ".join(str(text or "").split())

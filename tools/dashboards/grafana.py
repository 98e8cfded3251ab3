"""Boards, rows and panels as values, and the JSON that Grafana reads."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).resolve().parents[2] / "deploy" / "grafana" / "dashboards"
SCHEMA_VERSION = 41  # of Grafana 12; older ones read it, too
_GRID_COLUMNS = 24
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL and what its lines are called."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One picture. `unit` is one of Grafana's ("s", "bytes", "reqps", "percentunit", "short", …)."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    kind: str = "timeseries"  # "stat", "bargauge", "table"
    about: str = ""
    width: int = 8
    height: int = 8
    stacked: bool = False
    minimum: float | None = 0
    maximum: float | None = None
    red_from: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """Panels below a headline."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A choice above the board: the values of a label."""

    name: str
    label: str
    metric: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One dashboard."""

    uid: str
    title: str
    about: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]


def to_json(board: Board) -> str:
    """Return the dashboard's provisioned JSON."""
    return json.dumps(_board(board), indent=1, ensure_ascii=False) + "\n"


def _board(board: Board) -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    top, number = 0, 1
    for row in board.rows:
        panels.append(
            {
                "id": number,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": top, "w": _GRID_COLUMNS, "h": 1},
            }
        )
        top, number, left, deepest = top + 1, number + 1, 0, 0
        for panel in row.panels:
            if left + panel.width > _GRID_COLUMNS:
                top, left, deepest = top + deepest, 0, 0
            panels.append(_panel(panel, number=number, left=left, top=top))
            left, deepest, number = left + panel.width, max(deepest, panel.height), number + 1
        top += deepest
    return {
        "id": None,
        "uid": board.uid,
        "title": board.title,
        "description": board.about,
        "tags": ["puna"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": [_alerts()]},
        "links": [
            {
                "type": "dashboards",
                "title": "Puna",
                "tags": ["puna"],
                "asDropdown": True,
                "keepTime": True,
                "includeVars": True,
            }
        ],
        "templating": {"list": [_datasource(), *map(_variable, board.variables)]},
        "panels": panels,
    }


def _panel(panel: Panel, *, number: int, left: int, top: int) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "thresholds": _thresholds(panel)}
    if panel.minimum is not None:
        defaults["min"] = panel.minimum
    if panel.maximum is not None:
        defaults["max"] = panel.maximum
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "fillOpacity": 30 if panel.stacked else 8,
            "lineWidth": 1,
            "showPoints": "never",
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
        }
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "gridPos": {"x": left, "y": top, "w": panel.width, "h": panel.height},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _OPTIONS[panel.kind],
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": _SOURCE,
                "expr": query.expr,
                "legendFormat": query.legend,
                "instant": panel.kind != "timeseries",
                "range": panel.kind == "timeseries",
                "format": "table" if panel.kind == "table" else "time_series",
            }
            for place, query in enumerate(panel.queries)
        ],
    }


_LAST = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_OPTIONS: dict[str, dict[str, Any]] = {
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {"reduceOptions": _LAST, "colorMode": "value", "graphMode": "none", "textMode": "auto"},
    "bargauge": {"reduceOptions": _LAST, "displayMode": "basic", "orientation": "horizontal", "showUnfilled": True},
    "table": {"showHeader": True, "cellHeight": "sm"},
}


def _thresholds(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.red_from is not None:
        steps.append({"color": "red", "value": panel.red_from})
    return {"mode": "absolute", "steps": steps}


def _datasource() -> dict[str, Any]:
    return {
        "type": "datasource",
        "name": "datasource",
        "label": "Prometheus",
        "query": "prometheus",
        "hide": 0,
        "refresh": 1,
    }


def _variable(variable: Variable) -> dict[str, Any]:
    return {
        "type": "query",
        "name": variable.name,
        "label": variable.label,
        "datasource": _SOURCE,
        "query": {"query": f"label_values({variable.metric}, {variable.name})", "refId": variable.name},
        "definition": f"label_values({variable.metric}, {variable.name})",
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _alerts() -> dict[str, Any]:
    return {
        "name": "Alerts",
        "datasource": _SOURCE,
        "enable": True,
        "iconColor": "red",
        "expr": 'ALERTS{alertname=~"Puna.*",alertstate="firing"}',
        "titleFormat": "{{alertname}}",
        "textFormat": "{{node}} {{model}} {{device}}",
    }

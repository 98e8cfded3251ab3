"""The screen of `puna top`: headline, devices as bars, models, requests; cut to the height of the terminal."""

import time
from collections.abc import Sequence

from rich.console import ConsoleDimensions, Group, RenderableType
from rich.table import Table
from rich.text import Text

from cli.core.cluster_view import ClusterItems
from cli.core.formatting import format_bytes
from cli.core.top_rows import (
    MODEL_HEADINGS,
    REQUEST_HEADINGS,
    DeviceUse,
    bar,
    device_uses,
    headline,
    model_rows,
    request_rows,
    spark_line,
)

_MODELS, _OTHERS, _FREE = "green", "yellow", "bright_black"
_BAR_MIN, _BAR_MAX = 10, 60
# Beside the rows of the three tables: head, chart, legend, headings, empty lines, foot.
_FIXED_LINES = 11


def draw(view: ClusterItems, url: str, size: ConsoleDimensions, *, trouble: str, idle_too: bool) -> RenderableType:
    """Everything that fits."""
    uses, models = list(device_uses(view)), model_rows(view, idle_too=idle_too)
    requests = request_rows(view, now_unix_ms=time.time() * 1000)
    for_devices, for_models, for_requests = _shares(size.height - _FIXED_LINES, len(uses), len(models), len(requests))
    head = Text.assemble(("puna top ", "bold"), f"{view.status.get('version', '')} at {url}  ", ("q leaves", "dim"))
    warning = trouble or (view.status.get("scheduler_error") or "")
    speeds = [float(sample.get("tokens_per_s") or 0) for sample in view.samples]
    return Group(
        head,
        Text(headline(view)),
        Text(spark_line(speeds, size.width), style=_MODELS),
        Text(warning, style="bold red", no_wrap=True, overflow="ellipsis"),
        Text.assemble(("■ models ", _MODELS), ("■ others ", _OTHERS), ("■ free", _FREE)),
        _devices(uses[:for_devices], size.width),
        Text(_left_out(len(uses) - for_devices, "devices"), style="dim"),
        _table(MODEL_HEADINGS, models[:for_models]),
        Text(_left_out(len(models) - for_models, "models"), style="dim"),
        _table(REQUEST_HEADINGS, requests[:for_requests]),
        Text(_left_out(len(requests) - for_requests, "requests"), style="dim"),
    )


def _shares(lines: int, devices: int, models: int, requests: int) -> tuple[int, int, int]:
    """Return the rows of each table: a third each; rows that one does not need pass to the next."""
    lines = max(3, lines)
    for_devices = min(devices, max(lines // 3, lines - models - requests))
    for_models = min(models, max((lines - for_devices) // 2, lines - for_devices - requests))
    return for_devices, for_models, max(0, min(requests, lines - for_devices - for_models))


def _devices(uses: Sequence[DeviceUse], width: int) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, show_header=False, expand=False)
    longest = max((len(use.node) + len(use.name) + 1 for use in uses), default=0)
    cells = max(_BAR_MIN, min(_BAR_MAX, width - longest - 45))
    for use in uses:
        models, others, free = bar(use, cells)
        drawn = Text.assemble(("█" * models, _MODELS), ("█" * others, _OTHERS), ("░" * free, _FREE))
        figures = f"{format_bytes(use.free_bytes)} free of {format_bytes(use.total_bytes)}"
        state = Text(use.state if use.state == "ok" else f"{use.state} {use.note}".strip())
        if use.state != "ok":
            state.stylize("red")
        table.add_row(Text(f"{use.node}/{use.name}"), drawn, Text(figures), state)
    return table


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in headings:
        table.add_column(heading, no_wrap=True, overflow="ellipsis")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _left_out(count: int, what: str) -> str:
    return f"and {count} more {what}" if count > 0 else ""

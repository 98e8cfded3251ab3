"""Rows and figures of `puna top`, as values. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cli.core.cluster_view import ClusterItems
from cli.core.formatting import format_bytes

Item = Mapping[str, Any]
MODEL_HEADINGS = ("MODEL", "STATE", "ON", "SLOTS", "QUEUE", "RUNNING", "TOKENS/S", "CONTEXT")
REQUEST_HEADINGS = ("REQUEST", "MODEL", "STATE", "TTFT", "TOKENS", "PROMPT", "NODE", "SINCE")
DEVICE_HEADINGS = ("NODE", "DEVICE", "STATE", "MODELS", "OTHERS", "FREE", "TOTAL")
_SPARKS = " ▁▂▃▄▅▆▇█"
_ID_DIGITS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUse:
    """Memory of one device. `others_bytes`: taken, but by none of the models."""

    node: str
    name: str
    state: str
    models_bytes: int
    others_bytes: int
    free_bytes: int
    total_bytes: int
    note: str

    def row(self) -> tuple[str, ...]:
        """As plain text."""
        sizes = (self.models_bytes, self.others_bytes, self.free_bytes, self.total_bytes)
        return (self.node, self.name, self.state, *(format_bytes(size) for size in sizes))


def device_uses(view: ClusterItems) -> Iterator[DeviceUse]:
    """Every device of every node."""
    for node in view.nodes:
        for device in node.get("devices") or []:
            total, free = int(device.get("total_bytes") or 0), int(device.get("free_bytes") or 0)
            held = sum(
                int(share.get(name) or 0)
                for share in device.get("holds") or []
                for name in ("weights_bytes", "cache_bytes", "graph_bytes")
            )
            taken = max(0, total - free)
            models = min(held, taken)
            state = str(device.get("state") or "")
            if node.get("state") not in ("ready", "degraded"):
                state = f"{node.get('state')}"
            note = str(device.get("state_reason") or "")
            if not note and device.get("trust") == "stale":
                note = "figures are old"
            yield DeviceUse(
                node=str(node.get("id", "")),
                name=str(device.get("name", "")),
                state=state,
                models_bytes=models,
                others_bytes=taken - models,
                free_bytes=free,
                total_bytes=total,
                note=note,
            )


def bar(use: DeviceUse, width: int) -> tuple[int, int, int]:
    """Cells for models, others and what is free; together `width`. What is there has a cell at least."""
    assert width >= 3
    if use.total_bytes <= 0:
        return 0, 0, width
    models = _cells(use.models_bytes, use.total_bytes, width)
    others = _cells(use.others_bytes, use.total_bytes, width)
    others = min(others, width - models)
    return models, others, width - models - others


def _cells(part: int, whole: int, width: int) -> int:
    return 0 if part <= 0 else min(width, max(1, round(part * width / whole)))


def model_rows(view: ClusterItems, *, idle_too: bool) -> list[tuple[str, ...]]:
    """Models that do something, or all of them; the busiest first."""
    rows: list[tuple[tuple[float, str], tuple[str, ...]]] = []
    for model in view.models:
        replicas: Sequence[Item] = model.get("replicas") or []
        busy = bool(replicas or model.get("queued") or model.get("waiting") or model.get("running"))
        if not busy and not idle_too:
            continue
        speed = float(model.get("tokens_per_s") or 0)
        row = (
            str(model.get("name", "")),
            _state(model, replicas),
            ", ".join(sorted({str(replica.get("node")) for replica in replicas})),
            f"{_sum(replicas, 'slots_busy')}/{_sum(replicas, 'slots_total')}" if replicas else "",
            str(model.get("waiting") or model.get("queued") or 0),
            str(model.get("running") or 0),
            f"{speed:.1f}",
            ", ".join(sorted({str(replica.get("context_length") or "") for replica in replicas})),
        )
        rows.append(((-speed, row[0]), row))
    return [row for _, row in sorted(rows)]


def _sum(replicas: Sequence[Item], name: str) -> int:
    return sum(int(replica.get(name) or 0) for replica in replicas)


def _state(model: Item, replicas: Sequence[Item]) -> str:
    if model.get("error"):
        return "broken"
    if not replicas:
        load = model.get("load") or {}
        return f"waits for {load['waits_for']}" if load.get("waits_for") else "not loaded"
    words: list[str] = []
    for replica in replicas:
        word = str(replica.get("state") or "")
        if word == "loading" and replica.get("fraction") is not None:
            word = f"loading {float(replica['fraction']):.0%}"
            if replica.get("load_seconds_left") is not None:
                word += f", {float(replica['load_seconds_left']):.0f} s left"
        words.append(word)
    if len(words) > 1 and len(set(words)) == 1:
        return f"{len(words)} × {words[0]}"
    return "; ".join(words)


def request_rows(view: ClusterItems, *, now_unix_ms: float) -> list[tuple[str, ...]]:
    """Return rows of the requests in progress, the oldest first."""
    rows: list[tuple[str, ...]] = []
    for request in view.requests:
        started, ttft = request.get("started_unix_ms"), request.get("first_token_ms")
        since_s = max(0.0, (now_unix_ms - started) / 1000) if started else 0.0
        rows.append(
            (
                str(request.get("id") or "")[-_ID_DIGITS:],
                str(request.get("model") or ""),
                _progress(request),
                "" if ttft is None else f"{ttft:.0f} ms",
                str(request.get("tokens") or 0),
                str(request.get("prompt_tokens") or ""),
                str(request.get("node") or ""),
                f"{since_s:.0f} s",
            )
        )
    return rows


def _progress(request: Item) -> str:
    state, progress = str(request.get("state") or ""), request.get("progress")
    if progress is None:
        return state
    return f"{state} {progress:.0%}" if isinstance(progress, float) else f"{state}, position {progress}"


def headline(view: ClusterItems) -> str:
    """One line with the figures of the last second."""
    samples = view.samples
    if not samples:
        return "measuring"
    last = samples[-1]
    ttft = last.get("first_token_ms")
    first = "none came" if ttft is None else f"{ttft:.0f} ms"
    return (
        f"{last.get('tokens_per_s', 0):.1f} tokens/s, prompts {last.get('prompt_tokens_per_s', 0):.1f} tokens/s, "
        f"{last.get('requests_per_s', 0):.2f} requests/s, running {last.get('running', 0)}, "
        f"waiting {last.get('waiting', 0)}, first token {first}"
    )


def spark_line(values: Sequence[float], width: int) -> str:
    """Draw the last values as a row of blocks, scaled to the largest of them."""
    shown = list(values)[-width:]
    top = max(shown, default=0.0)
    steps = len(_SPARKS) - 1
    return "".join(_SPARKS[0 if top <= 0 or value <= 0 else max(1, round(value * steps / top))] for value in shown)

import io
from typing import Any

import pytest
from rich.console import Console, ConsoleDimensions

from cli.commands.top import draw
from cli.core.cluster_view import ClusterItems


def busy_view(*, devices: int, models: int, requests: int) -> ClusterItems:
    device: dict[str, Any] = {"name": "GPU", "state": "ok", "total_bytes": 100, "free_bytes": 50, "holds": []}
    replica = {"state": "ready", "node": "n", "slots_busy": 0, "slots_total": 1}
    view = ClusterItems()
    view.apply_event(
        "snapshot",
        {
            "gateway": {"status": {"version": "1"}},
            "nodes": {"n": {"id": "n", "state": "ready", "devices": [device] * devices}},
            "models": {str(one): {"name": f"model-{one}", "replicas": [replica]} for one in range(models)},
            "requests": {str(one): {"id": f"req-{one}", "model": "m", "state": "answering"} for one in range(requests)},
        },
    )
    return view


@pytest.mark.parametrize(
    ("devices", "models", "requests"), [(1, 1, 0), (40, 40, 40), (1, 1, 100), (0, 0, 0), (30, 0, 1)]
)
@pytest.mark.parametrize("height", [18, 24, 50])
def test_the_screen_fits_the_terminal(devices: int, models: int, requests: int, height: int) -> None:
    view = busy_view(devices=devices, models=models, requests=requests)
    out = io.StringIO()
    console = Console(file=out, width=90, height=height, force_terminal=False)

    console.print(draw(view, "http://x", ConsoleDimensions(90, height), trouble="", idle_too=False))

    lines = out.getvalue().splitlines()
    assert len(lines) <= height
    assert all(len(line) <= 90 for line in lines)


def test_what_is_left_out_is_counted() -> None:
    out = io.StringIO()
    Console(file=out, width=90, height=24).print(
        draw(
            busy_view(devices=1, models=1, requests=100),
            "http://x",
            ConsoleDimensions(90, 24),
            trouble="",
            idle_too=False,
        )
    )

    assert "and 89 more requests" in out.getvalue()


def test_trouble_is_shown_with_the_last_state() -> None:
    out = io.StringIO()
    Console(file=out, width=90).print(
        draw(
            busy_view(devices=1, models=1, requests=0),
            "http://x",
            ConsoleDimensions(90, 24),
            trouble="gone",
            idle_too=False,
        )
    )

    assert "gone" in out.getvalue()
    assert "model-0" in out.getvalue()

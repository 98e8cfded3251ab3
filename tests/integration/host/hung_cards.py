"""Children that see a card which hangs are given up soon; others have their time, however busy the machine is."""

from collections.abc import Awaitable, Mapping, Sequence

import pytest

from runner.host.devices import device_probe
from runner.host.processes.children import RunnerChildResult, run_child

HUNG_S = 1.0


def hurry(monkeypatch: pytest.MonkeyPatch, hung: str) -> None:
    """A probe or a test that sees the card `hung` has a second instead of half a minute."""

    def run(
        mode: str, arguments: Sequence[str], *, timeout_s: float, environment: Mapping[str, str]
    ) -> Awaitable[RunnerChildResult]:
        sees = hung in environment.get("CUDA_VISIBLE_DEVICES", hung)
        return run_child(mode, arguments, timeout_s=HUNG_S if sees else timeout_s, environment=environment)

    monkeypatch.setattr(device_probe, "run_child", run)

"""Children that hang are given up soon; others have their time, however busy the machine is."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

import pytest

from runner.host.devices import device_probe
from runner.host.processes.children import RunnerChildResult, run_child

HUNG_S = 1.0


def hurry(monkeypatch: pytest.MonkeyPatch, hangs: Callable[[Sequence[str], Mapping[str, str]], bool]) -> None:
    """A probe or a test that `hangs`, by its arguments and environment, has a second instead of half a minute."""

    def run(
        mode: str, arguments: Sequence[str], *, timeout_s: float, environment: Mapping[str, str]
    ) -> Awaitable[RunnerChildResult]:
        given_s = HUNG_S if hangs(arguments, environment) else timeout_s
        return run_child(mode, arguments, timeout_s=given_s, environment=environment)

    monkeypatch.setattr(device_probe, "run_child", run)

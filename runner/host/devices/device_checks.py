"""The second pass of a probe: every device alone must compute, in a process of its own."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from google.protobuf import json_format

from common.telemetry.logs import get_logger
from protos import cluster_pb2, probe_pb2
from runner.core.devices.device_health import CheckFailure
from runner.host.processes.children import RunnerChildResult, run_child

log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest:
    """One device to test. `environment` hides all others from the child."""

    device_id: str
    backend: str
    rpc_address: str  # empty: a device of this machine
    environment: Mapping[str, str]
    speed: bool  # time a copy, too

    @property
    def key(self) -> tuple[str, str]:
        """Two backends may list one card."""
        return self.backend, self.device_id


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """`device` is the engine's own word on a device that passed."""

    failure: CheckFailure | None
    device: cluster_pb2.Device | None = None


async def check_devices(requests: Sequence[CheckRequest], *, timeout_s: float) -> dict[tuple[str, str], CheckResult]:
    """Test all at once, those of one RPC server one after another, because it serves one client at a time.

    `timeout_s` is for all of them together.
    """
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    turns: dict[str, list[CheckRequest]] = {}
    for request in requests:
        turns.setdefault(request.rpc_address or str(request.key), []).append(request)
    results: dict[tuple[str, str], CheckResult] = {}

    async def check_in_turn(turn: Sequence[CheckRequest]) -> None:
        for request in turn:
            results[request.key] = await _check(request, deadline_s)

    async with asyncio.TaskGroup() as group:
        for turn in turns.values():
            group.create_task(check_in_turn(turn))
    return results


async def _check(request: CheckRequest, deadline_s: float) -> CheckResult:
    arguments = ["--check", request.device_id, "--backend", request.backend]
    arguments += ["--rpc", request.rpc_address] if request.rpc_address else []
    arguments += [] if request.speed else ["--no-speed"]
    left_s = max(0.0, deadline_s - asyncio.get_running_loop().time())
    result = await run_child("probe", arguments, timeout_s=left_s, environment=request.environment)
    checked = _read(result)
    if checked.failure is not None:
        log.warning("device.check_failed", device=request.device_id, text=checked.failure.reason)
    return checked


def _read(result: RunnerChildResult) -> CheckResult:
    if result.exit_code != 0:
        return CheckResult(failure=failure_of(result, "its test failed"))
    try:
        report = json_format.Parse(result.output, probe_pb2.ProbeReport())
    except json_format.ParseError as error:
        return CheckResult(failure=CheckFailure(reason=f"its test said nothing that can be read: {error}"))
    if not report.devices:
        return CheckResult(failure=CheckFailure(reason="the engine lists nothing when it sees this device alone"))
    return CheckResult(failure=None, device=report.devices[0])


def failure_of(result: RunnerChildResult, what: str) -> CheckFailure:
    """Return the failure of a child that should have answered."""
    return CheckFailure(
        reason=f"{what}: {result.failure()}", exit_code=result.exit_code, last_line=result.last_line[:500]
    )

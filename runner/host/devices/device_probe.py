"""The two passes of a probe: what the engine lists, and whether every device alone computes in a process of its own.

A backend that kills the listing, or hangs it, does not take the others with it; nor does one card those of its own
backend.
"""

import asyncio
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from google.protobuf import json_format

from common.telemetry.logs import get_logger
from protos import cluster_pb2, probe_pb2
from runner.core.devices.device_health import CheckFailure
from runner.core.devices.devices import CPU_ID, HOST_POOL
from runner.core.devices.gpu_memory import GpuMemory, is_slice
from runner.core.host.environment import CARDS, HIDING, VisibleDevice, cards_left, hide, limit_visibility
from runner.gpu_memory import cards_as_json
from runner.host.processes.children import RunnerChildResult, run_child

log = get_logger()

# The backend whose visibility hides a card of a driver.
_BACKEND_OF = {"nvml": "CUDA", "sysfs": "ROCm"}

Answer = probe_pb2.ProbeReport | CheckFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundDevices:
    """Result of a listing. `broken` killed the listing when seen alone; a `failure` means that nothing works."""

    report: probe_pb2.ProbeReport = field(default_factory=probe_pb2.ProbeReport)
    broken: Mapping[str, CheckFailure] = field(default_factory=dict)  # by device id
    hidden: tuple[str, ...] = ()  # backends that no process may meet
    failure: CheckFailure | None = None


async def probe_engine(environment: Mapping[str, str], *, timeout_s: float) -> FoundDevices:
    """List everything."""
    answer = await _list(environment, timeout_s)
    if isinstance(answer, probe_pb2.ProbeReport):
        return FoundDevices(report=answer)
    log.error("devices.probe_failed", text=answer.reason)
    return FoundDevices(failure=answer)


async def probe_apart(
    cards: Sequence[GpuMemory], failure: CheckFailure | None, *, environment: Mapping[str, str], timeout_s: float
) -> FoundDevices:
    """List one backend at a time, and every card alone, all at once.

    For machines where a listing of everything ended with `failure`, or cannot show every card.
    """
    cards = _cards_left(cards)
    environments = [
        _only(cards, ()),
        *(_only(cards, [backend], _cards_of(backend, cards)) for backend in HIDING),
        *(_only(cards, [_backend_of(card)], [card]) for card in cards),
    ]
    base, *others = await asyncio.gather(*(_list({**environment, **only}, timeout_s) for only in environments))
    if isinstance(base, CheckFailure):  # it was none of those that can be hidden
        return FoundDevices(failure=failure or base)
    by_backend = dict(zip(HIDING, others, strict=False))
    by_card = dict(zip((card.key for card in cards), others[len(HIDING) :], strict=True))
    return _put_together(base, by_backend, by_card, cards)


def has_slices(cards: Iterable[GpuMemory]) -> bool:
    """Return True if no single process can list all cards."""
    return any(is_slice(card.uuid) for card in cards)


def _put_together(
    report: probe_pb2.ProbeReport,
    by_backend: Mapping[str, Answer],
    by_card: Mapping[str, Answer],
    cards: Sequence[GpuMemory],
) -> FoundDevices:
    """Add what the other listings have to the report of the one without any backend that can be hidden."""
    known = {(device.id, device.backend) for device in report.devices}
    broken: dict[str, CheckFailure] = {}
    hidden: list[str] = []
    for backend, answer in by_backend.items():
        its_cards = _cards_of(backend, cards)
        failure = answer if isinstance(answer, CheckFailure) else None
        if isinstance(answer, probe_pb2.ProbeReport) and not (backend in answer.backends and has_slices(its_cards)):
            report.backends.extend(name for name in answer.backends if name not in report.backends)
            report.devices.extend(device for device in answer.devices if (device.id, device.backend) not in known)
            continue
        alone = [_card_alone(card, by_card[card.key]) for card in its_cards]
        for number, (device, reason) in enumerate(alone or [(_stand_in(backend), failure)]):
            if reason is None:
                device.name = f"{backend}{number}"  # each was the first that its process saw
            else:
                broken[device.id] = reason
            report.devices.append(device)
        if not any(reason is None for _, reason in alone):
            hidden.append(backend)
            log.error("devices.backend_hidden", backend=backend, text=failure.reason if failure is not None else "")
        elif backend not in report.backends:
            report.backends.append(backend)
    return FoundDevices(report=report, broken=broken, hidden=tuple(hidden))


def _card_alone(card: GpuMemory, answer: Answer) -> tuple[cluster_pb2.Device, CheckFailure | None]:
    if isinstance(answer, CheckFailure):
        return _broken_device(card), answer
    listed = next((device for device in answer.devices if device.pci_id == card.pci_id), None)
    if listed is not None:
        return listed, None
    return _broken_device(card), CheckFailure(reason="the engine does not list it when it sees this card alone")


def _cards_left(cards: Sequence[GpuMemory]) -> list[GpuMemory]:
    """Those that the user's own limits leave: a listing with limits of ours must not bring back the others."""
    left: list[GpuMemory] = []
    for backend in dict.fromkeys(_backend_of(card) for card in cards):
        of_it = sorted(_cards_of(backend, cards), key=lambda card: card.pci_id)
        uuids = cards_left([card.uuid for card in of_it], backend=backend, limits=os.environ)
        left += [card for card in of_it if card.uuid in uuids]
    return left


def _backend_of(card: GpuMemory) -> str:
    return _BACKEND_OF.get(card.source, "")


def _cards_of(backend: str, cards: Iterable[GpuMemory]) -> list[GpuMemory]:
    return [card for card in cards if _backend_of(card) == backend]


def _only(cards: Sequence[GpuMemory], backends: Sequence[str], shown: Sequence[GpuMemory] = ()) -> dict[str, str]:
    """Return an environment in which a child meets these backends and cards."""
    visible = [VisibleDevice(id=card.uuid, backend=_backend_of(card), uuid=card.uuid) for card in shown]
    return {
        CARDS: cards_as_json(list(cards)),
        **hide(backend for backend in HIDING if backend not in backends),
        **(limit_visibility(visible, backends=backends) if visible else {}),
    }


async def _list(environment: Mapping[str, str], timeout_s: float) -> Answer:
    result = await run_child("probe", [], timeout_s=timeout_s, environment=environment)
    answer = _read(result, "the probe")
    if isinstance(answer, probe_pb2.ProbeReport) and result.last_errors:
        log.warning("devices.probe_warning", text=result.last_errors)
    return answer


def _read(result: RunnerChildResult, title: str) -> Answer:
    """Return the report of a child in probe mode, or why there is none; `title` names the child."""
    if result.exit_code != 0:
        return CheckFailure(
            reason=f"{title} failed: {result.failure()}", exit_code=result.exit_code, last_line=result.last_line[:500]
        )
    try:
        return json_format.Parse(result.output, probe_pb2.ProbeReport())
    except json_format.ParseError as error:
        return CheckFailure(reason=f"{title} said nothing that can be read: {error}")


def _broken_device(card: GpuMemory) -> cluster_pb2.Device:
    return cluster_pb2.Device(
        id=card.device_id or card.uuid or card.pci_id,
        name=card.uuid or card.pci_id,
        backend=_backend_of(card),
        pci_id=card.pci_id,
        type=cluster_pb2.DEVICE_TYPE_GPU,
        total_bytes=card.total_bytes,
        free_bytes=card.free_bytes,
        free_source=card.source,
        pool_id=card.device_id or card.uuid or card.pci_id,
        driver=card.driver,
        id_stable=True,
    )


def _stand_in(backend: str) -> cluster_pb2.Device:
    """For the devices of a backend that cannot be listed: its id is the backend's name."""
    return cluster_pb2.Device(
        id=backend,
        name=backend,
        backend=backend,
        description="devices of this backend, which cannot be listed",
        type=cluster_pb2.DEVICE_TYPE_GPU,
        pool_id=backend,
        id_stable=True,
    )


def bare_cpu() -> cluster_pb2.Device:
    """Return the CPU device as known without the engine: there is RAM."""
    return cluster_pb2.Device(
        id=CPU_ID,
        name="CPU",
        backend="CPU",
        type=cluster_pb2.DEVICE_TYPE_CPU,
        pool_id=HOST_POOL,
        id_stable=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest:
    """One device to test. `environment` hides all others from the child."""

    device_id: str
    backend: str
    rpc_address: str  # empty: a device of this machine
    environment: Mapping[str, str]
    speed: bool  # time a copy, too


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """`device` is the engine's own word on a device that passed."""

    failure: CheckFailure | None
    device: cluster_pb2.Device | None = None


async def check_devices(requests: Sequence[CheckRequest], *, timeout_s: float) -> list[CheckResult]:
    """Test all at once, those of one RPC server one after another, because it serves one client at a time.

    `timeout_s` is for all of them together.
    """
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by RPC server, or device

    async def check_in_turn(request: CheckRequest) -> CheckResult:
        async with turns[request.rpc_address or f"{request.backend} {request.device_id}"]:
            return await _check(request, deadline_s)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(check_in_turn(request)) for request in requests]
    return [task.result() for task in tasks]


async def _check(request: CheckRequest, deadline_s: float) -> CheckResult:
    arguments = ["--check", request.device_id, "--backend", request.backend]
    arguments += ["--rpc", request.rpc_address] if request.rpc_address else []
    arguments += [] if request.speed else ["--no-speed"]
    left_s = max(0.0, deadline_s - asyncio.get_running_loop().time())
    result = await run_child("probe", arguments, timeout_s=left_s, environment=request.environment)
    answer = _read(result, "its test")
    if isinstance(answer, probe_pb2.ProbeReport):
        if answer.devices:
            return CheckResult(failure=None, device=answer.devices[0])
        answer = CheckFailure(reason="the engine lists nothing when it sees this device alone")
    log.warning("device.check_failed", device=request.device_id, text=answer.reason)
    return CheckResult(failure=answer)

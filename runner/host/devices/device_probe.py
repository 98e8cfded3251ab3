"""The first pass: what the engine lists. One card that kills the listing does not take the others with it."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from google.protobuf import json_format

from common.logs import get_logger
from protos import cluster_pb2, probe_pb2
from runner.core.device_health import CheckFailure
from runner.core.devices import CPU_ID, HOST_POOL
from runner.core.environment import CARDS, VisibleDevice, limit_visibility
from runner.core.gpu_memory import GpuMemory
from runner.gpu_memory import cards_as_json
from runner.host.devices.device_checks import failure_of
from runner.host.runners.children import run_child

log = get_logger()

PROBE_TIMEOUT_S = 30.0
# The backend whose visibility hides a card of a driver.
_BACKEND_OF = {"nvml": "CUDA", "sysfs": "ROCm"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What there is. `broken` killed the listing when they were seen alone; a `failure` says that nothing works."""

    engine_build: str = ""
    backends: tuple[str, ...] = ()
    devices: tuple[cluster_pb2.Device, ...] = ()
    broken: Mapping[str, CheckFailure] = field(default_factory=dict)  # by device id
    failure: CheckFailure | None = None


async def probe_engine(environment: Mapping[str, str]) -> Found:
    """List everything."""
    report, failure = await _list(environment, PROBE_TIMEOUT_S)
    if report is None:
        assert failure is not None  # one of the two
        log.error("devices.probe_failed", text=failure.reason)
        return Found(failure=failure)
    return Found(engine_build=report.engine_build, backends=tuple(report.backends), devices=tuple(report.devices))


async def probe_apart(cards: Sequence[GpuMemory], failure: CheckFailure) -> Found:
    """List every card alone, all at once, after listing them together has failed."""
    shown = [[], *([card] for card in cards)]
    answers = await asyncio.gather(*(_list(_alone(cards, one), PROBE_TIMEOUT_S) for one in shown))
    (base, _), *alone = answers
    if base is None:  # it was no card
        return Found(failure=failure)
    devices, broken = list(base.devices), {}
    for card, (report, reason) in zip(cards, alone, strict=True):
        if report is not None:
            devices += [device for device in report.devices if device.pci_id == card.pci_id]
        else:
            assert reason is not None  # one of the two
            device = _broken_device(card)
            devices.append(device)
            broken[device.id] = reason
    return Found(engine_build=base.engine_build, backends=tuple(base.backends), devices=tuple(devices), broken=broken)


def _alone(cards: Sequence[GpuMemory], shown: Sequence[GpuMemory]) -> dict[str, str]:
    visible = [VisibleDevice(id=card.uuid, backend=_BACKEND_OF.get(card.source, ""), uuid=card.uuid) for card in shown]
    return {CARDS: cards_as_json(list(cards)), **limit_visibility(visible, backends=_BACKEND_OF.values())}


async def _list(
    environment: Mapping[str, str], timeout_s: float
) -> tuple[probe_pb2.ProbeReport | None, CheckFailure | None]:
    result = await run_child("probe", [], timeout_s=timeout_s, environment=environment)
    if result.exit_code != 0:
        return None, failure_of(result, "the probe failed")
    try:
        report = json_format.Parse(result.output, probe_pb2.ProbeReport())
    except json_format.ParseError as error:
        return None, CheckFailure(reason=f"the probe said nothing that can be read: {error}")
    if result.last_errors:
        log.warning("devices.probe_warning", text=result.last_errors)
    return report, None


def _broken_device(card: GpuMemory) -> cluster_pb2.Device:
    return cluster_pb2.Device(
        id=card.uuid or card.pci_id,
        name=card.uuid or card.pci_id,
        backend=_BACKEND_OF.get(card.source, ""),
        pci_id=card.pci_id,
        type=cluster_pb2.DEVICE_TYPE_GPU,
        total_bytes=card.total_bytes,
        free_bytes=card.free_bytes,
        free_source=card.source,
        pool_id=card.uuid or card.pci_id,
        driver=card.driver,
        id_stable=True,
    )


def bare_cpu() -> cluster_pb2.Device:
    """What is known without the engine: there is RAM."""
    return cluster_pb2.Device(
        id=CPU_ID,
        name="CPU",
        backend="CPU",
        type=cluster_pb2.DEVICE_TYPE_CPU,
        pool_id=HOST_POOL,
        id_stable=True,
    )

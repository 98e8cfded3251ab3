"""The first pass: what the engine lists.

A backend that kills the listing, or hangs it, does not take the others with it; nor does one card those of its own
backend.
"""

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from google.protobuf import json_format

from common.telemetry.logs import get_logger
from protos import cluster_pb2, probe_pb2
from runner.core.devices.device_health import CheckFailure
from runner.core.devices.devices import CPU_ID, HOST_POOL
from runner.core.devices.gpu_memory import GpuMemory
from runner.core.host.environment import CARDS, HIDING, VisibleDevice, cards_left, hide, limit_visibility
from runner.gpu_memory import cards_as_json
from runner.host.devices.device_checks import failure_of
from runner.host.processes.children import run_child

log = get_logger()

# The backend whose visibility hides a card of a driver.
_BACKEND_OF = {"nvml": "CUDA", "sysfs": "ROCm"}

Answer = tuple[probe_pb2.ProbeReport | None, CheckFailure | None]  # one of the two


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundDevices:
    """Result of a listing. `broken` killed the listing when seen alone; a `failure` means that nothing works."""

    engine_build: str = ""
    backends: tuple[str, ...] = ()
    devices: tuple[cluster_pb2.Device, ...] = ()
    broken: Mapping[str, CheckFailure] = field(default_factory=dict)  # by device id
    hidden: tuple[str, ...] = ()  # backends that no process may meet
    failure: CheckFailure | None = None


async def probe_engine(environment: Mapping[str, str], *, timeout_s: float) -> FoundDevices:
    """List everything."""
    report, failure = await _list(environment, timeout_s)
    if report is None:
        assert failure is not None  # one of the two
        log.error("devices.probe_failed", text=failure.reason)
        return FoundDevices(failure=failure)
    return FoundDevices(
        engine_build=report.engine_build, backends=tuple(report.backends), devices=tuple(report.devices)
    )


async def probe_apart(cards: Sequence[GpuMemory], failure: CheckFailure, *, timeout_s: float) -> FoundDevices:
    """List one backend at a time, and every card alone, all at once, after listing everything together has failed."""
    cards = _cards_left(cards)
    environments = [
        _only(cards, ()),
        *(_only(cards, [backend], _cards_of(backend, cards)) for backend in HIDING),
        *(_only(cards, [_backend_of(card)], [card]) for card in cards),
    ]
    base, *others = await asyncio.gather(*(_list(environment, timeout_s) for environment in environments))
    if base[0] is None:  # it was none of those that can be hidden
        return FoundDevices(failure=failure)
    by_backend = dict(zip(HIDING, others, strict=False))
    by_card = dict(zip((card.pci_id for card in cards), others[len(HIDING) :], strict=True))
    return _put_together(base[0], by_backend, by_card, cards)


def _put_together(
    base: probe_pb2.ProbeReport,
    by_backend: Mapping[str, Answer],
    by_card: Mapping[str, Answer],
    cards: Sequence[GpuMemory],
) -> FoundDevices:
    backends, devices = list(base.backends), list(base.devices)
    known = {(device.id, device.backend) for device in devices}
    broken: dict[str, CheckFailure] = {}
    hidden: list[str] = []
    for backend, (report, failure) in by_backend.items():
        if report is not None:
            backends += [name for name in report.backends if name not in backends]
            devices += [device for device in report.devices if (device.id, device.backend) not in known]
            continue
        assert failure is not None  # one of the two
        its_cards = _cards_of(backend, cards)
        alone = [_card_alone(card, by_card[card.pci_id]) for card in its_cards]
        for device, reason in alone or [(_stand_in(backend), failure)]:
            devices.append(device)
            if reason is not None:
                broken[device.id] = reason
        if not any(reason is None for _, reason in alone):
            hidden.append(backend)
            log.error("devices.backend_hidden", backend=backend, text=failure.reason)
        elif backend not in backends:
            backends.append(backend)
    return FoundDevices(
        engine_build=base.engine_build,
        backends=tuple(backends),
        devices=tuple(devices),
        broken=broken,
        hidden=tuple(hidden),
    )


def _card_alone(card: GpuMemory, answer: Answer) -> tuple[cluster_pb2.Device, CheckFailure | None]:
    report, failure = answer
    if report is None:
        return _broken_device(card), failure
    listed = next((device for device in report.devices if device.pci_id == card.pci_id), None)
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
        backend=_backend_of(card),
        pci_id=card.pci_id,
        type=cluster_pb2.DEVICE_TYPE_GPU,
        total_bytes=card.total_bytes,
        free_bytes=card.free_bytes,
        free_source=card.source,
        pool_id=card.uuid or card.pci_id,
        driver=card.driver,
        id_stable=True,
    )


def _stand_in(backend: str) -> cluster_pb2.Device:
    """For the devices of a backend that cannot be listed."""
    return cluster_pb2.Device(
        id=backend,
        name=backend,
        backend=backend,
        description="devices of this backend, which cannot be listed",
        type=cluster_pb2.DEVICE_TYPE_GPU,
        pool_id=backend,
        id_stable=True,
    )


def is_stand_in(device: cluster_pb2.Device) -> bool:
    """No device: it says that those of its backend cannot be listed."""
    return device.id == device.backend


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

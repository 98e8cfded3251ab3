"""Reads NVIDIA cards through NVML, without creating a context on them.

Source: the NVML API reference, https://docs.nvidia.com/deploy/nvml-api/.
"""

import contextlib
import ctypes
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pynvml

from runner.core.devices.gpu_memory import CardVitals, GpuMemory, normal_pci_id

# Under WSL a stub of the distribution may lie in the usual place; the driver's own library is here. Loaded first, it is
# also what every later search for the same name finds.
_WSL_LIBRARY = "/usr/lib/wsl/lib/libnvidia-ml.so.1"
_CARDS_MAX = 64
_EVENTS_MAX = 64  # of one look
# Reasons for low clocks that are worth a name; idleness and an operator's own clocks are none.
_THROTTLING = {
    "power": pynvml.nvmlClocksThrottleReasonSwPowerCap,
    "thermal": pynvml.nvmlClocksThrottleReasonSwThermalSlowdown | pynvml.nvmlClocksThrottleReasonHwThermalSlowdown,
    "power_brake": pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
}


class Nvml:
    """NVIDIA's management library, initialised. It lists the cards that were there when it was opened."""

    def __init__(self) -> None:
        self._events: Any = None  # the binding has no types
        self._xids: dict[str, list[int]] = defaultdict(list)  # errors since the last report, by PCI address

    @classmethod
    def open(cls, before: "Nvml | None" = None) -> "Nvml | None":
        """Initialise the library, in the place of the one opened `before`; None where there is no driver."""
        opened = cls()
        if before is not None:
            before.collect_errors()
            opened._xids = before._xids
            before._close()
        with contextlib.suppress(OSError):
            ctypes.CDLL(_WSL_LIBRARY)
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return None
        opened._register()
        return opened

    def read(self) -> list[GpuMemory]:
        """Read the memory of every card that answers. One that fell off the bus does not, and is left out."""
        try:
            driver = f"nvidia {pynvml.nvmlSystemGetDriverVersion()}"
        except pynvml.NVMLError:
            return []
        return [card for handle in self._handles() for card in _read_cards(handle, driver)]

    def read_vitals(self) -> dict[str, CardVitals]:
        """Read the condition of every card by PCI address, with the errors since the last call."""
        self.collect_errors()
        xids, self._xids = self._xids, defaultdict(list)
        found = {}
        for handle in self._handles():
            with contextlib.suppress(pynvml.NVMLError):
                address = _address(handle)
                found[address] = _read_vitals(handle, tuple(xids[address]))
        return found

    def collect_errors(self) -> bool:
        """Take new Xid errors from the driver; return True if some have not been reported."""
        with contextlib.suppress(pynvml.NVMLError):  # of which a time-out means that there are no more
            for _ in range(_EVENTS_MAX if self._events is not None else 0):
                event = pynvml.nvmlEventSetWait_v2(self._events, 0)
                self._xids[_address(event.device)].append(int(event.eventData))
        return bool(self._xids)

    def _handles(self) -> Iterator[Any]:
        with contextlib.suppress(pynvml.NVMLError):
            for index in range(min(pynvml.nvmlDeviceGetCount(), _CARDS_MAX)):
                with contextlib.suppress(pynvml.NVMLError):
                    yield pynvml.nvmlDeviceGetHandleByIndex(index)

    def _close(self) -> None:
        with contextlib.suppress(pynvml.NVMLError):
            if self._events is not None:
                pynvml.nvmlEventSetFree(self._events)
            pynvml.nvmlShutdown()

    def _register(self) -> None:
        """Subscribe to Xid errors of the cards that have them; WSL and vGPUs do not."""
        with contextlib.suppress(pynvml.NVMLError):
            self._events = pynvml.nvmlEventSetCreate()
            for handle in self._handles():
                with contextlib.suppress(pynvml.NVMLError):
                    pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._events)


def _address(handle: Any) -> str:
    return normal_pci_id(pynvml.nvmlDeviceGetPciInfo(handle).busId)


def _read_cards(handle: Any, driver: str) -> list[GpuMemory]:
    """Read a card, or its slices: the memory of a card in MIG mode can be had through them alone."""
    with contextlib.suppress(pynvml.NVMLError):
        pci_id = _address(handle)
        cards = (_read_card(one, pci_id, driver) for one in _slices(handle) or [handle])
        return [card for card in cards if card is not None]
    return []


def _slices(handle: Any) -> list[Any]:
    """Return the MIG devices of a card; slots that no device was made in are empty."""
    slices = []
    with contextlib.suppress(pynvml.NVMLError):  # cards before Ampere know no MIG
        current, _ = pynvml.nvmlDeviceGetMigMode(handle)
        for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle) if current else 0):
            with contextlib.suppress(pynvml.NVMLError_NotFound):
                slices.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))
    return slices


def _read_card(handle: Any, pci_id: str, driver: str) -> GpuMemory | None:
    try:
        uuid = pynvml.nvmlDeviceGetUUID(handle)
        try:
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        except pynvml.NVMLError_NotSupported:  # unified memory, as on Tegra and GB10: RAM is all that it has
            return GpuMemory(
                pci_id=pci_id, uuid=uuid, total_bytes=0, free_bytes=0, source="nvml", driver=driver, unified=True
            )
    except pynvml.NVMLError:
        return None
    return GpuMemory(
        pci_id=pci_id,
        uuid=uuid,
        total_bytes=memory.total,
        free_bytes=memory.free,
        source="nvml",
        driver=driver,
        processes=_read_processes(handle),
    )


def _read_processes(handle: Any) -> tuple[tuple[int, int], ...] | None:
    """Process ids and bytes on a card, those that compute and those that draw; None: its driver does not list them."""
    held: dict[int, int] = {}
    try:
        for found in (
            pynvml.nvmlDeviceGetComputeRunningProcesses(handle),
            pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle),
        ):
            for one in found:
                held[int(one.pid)] = max(held.get(int(one.pid), 0), int(one.usedGpuMemory or 0))
    except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError):
        return None
    return tuple(sorted(held.items()))


def _read_vitals(handle: Any, xids: tuple[int, ...]) -> CardVitals:
    """Read what this card supports; each figure may be missing by itself."""
    busy = _ask(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    power_mw = _ask(lambda: pynvml.nvmlDeviceGetPowerUsage(handle))
    # The older name of the call, which every driver has.
    reasons = _ask(lambda: pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)) or 0
    return CardVitals(
        utilization=None if busy is None else busy / 100,
        temperature_c=_ask(lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
        power_w=None if power_mw is None else power_mw / 1000,
        throttled=tuple(name for name, mask in _THROTTLING.items() if reasons & mask),
        ecc_corrected=_ask(lambda: _ecc_errors(handle, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED)),
        ecc_uncorrected=_ask(lambda: _ecc_errors(handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)),
        xids=xids,
    )


def _ecc_errors(handle: Any, kind: int) -> int:
    return int(pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, pynvml.NVML_VOLATILE_ECC))


def _ask(call: Callable[[], int]) -> int | None:
    with contextlib.suppress(pynvml.NVMLError):
        return int(call())
    return None

"""Reads the memory of GPUs from their drivers, without creating a context on them: NVML, and sysfs for AMD.

A broken card can hang NVML for ever, so a host asks through `python -m runner gpu-memory`: a child that prints one line
a second, and is killed when it falls silent.
"""

import argparse
import contextlib
import ctypes
import signal
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from runner.core.gpu_memory import GpuMemory, normal_pci_id

# Under WSL a stub of the distribution may lie in the usual place; the driver's own library is here.
_NVML_PATHS = ("/usr/lib/wsl/lib/libnvidia-ml.so.1", "libnvidia-ml.so.1")
_NVML_SUCCESS = 0
_UUID_BYTES = 96
_CARDS_MAX = 64
INTERVAL_S = 1.0


class _NvmlMemory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _NvmlPci(ctypes.Structure):
    """nvmlPciInfo_t."""

    _fields_ = [
        ("bus_id_legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("device_id", ctypes.c_uint),
        ("subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    ]


def open_nvml() -> Any | None:
    """NVIDIA's management library, initialised; None where there is no driver."""
    for path in _NVML_PATHS:
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL(path)
            if library.nvmlInit_v2() == _NVML_SUCCESS:
                return library
    return None


def read_nvidia(library: Any) -> list[GpuMemory]:
    """Every NVIDIA card that tells its memory. Cards that only know unified memory do not, and are left out."""
    count = ctypes.c_uint()
    if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != _NVML_SUCCESS:
        return []
    cards = (_read_nvidia_card(library, index) for index in range(min(count.value, _CARDS_MAX)))
    return [card for card in cards if card is not None]


def _read_nvidia_card(library: Any, index: int) -> GpuMemory | None:
    handle, memory, pci = ctypes.c_void_p(), _NvmlMemory(), _NvmlPci()
    uuid = ctypes.create_string_buffer(_UUID_BYTES)
    answers = (
        library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)),
        library.nvmlDeviceGetPciInfo_v3(handle, ctypes.byref(pci)),
        library.nvmlDeviceGetUUID(handle, uuid, ctypes.c_uint(_UUID_BYTES)),
        library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)),
    )
    if any(answer != _NVML_SUCCESS for answer in answers):
        return None
    return GpuMemory(
        pci_id=normal_pci_id(pci.bus_id.decode(errors="replace")),
        uuid=uuid.value.decode(errors="replace"),
        total_bytes=memory.total,
        free_bytes=memory.free,
        source="nvml",
    )


def read_amd(sysfs: Path = Path("/sys")) -> list[GpuMemory]:
    """Every AMD card. The VRAM figures count all processes, which HIP's own do not."""
    return list(_amd_cards(sysfs / "bus/pci/devices"))


def _amd_cards(devices: Path) -> Iterator[GpuMemory]:
    for total in sorted(devices.glob("*/mem_info_vram_total")):
        with contextlib.suppress(OSError, ValueError):
            total_bytes = int(total.read_text())
            used_bytes = int(total.with_name("mem_info_vram_used").read_text())
            yield GpuMemory(
                pci_id=normal_pci_id(total.parent.name),
                uuid="",
                total_bytes=total_bytes,
                free_bytes=max(0, total_bytes - used_bytes),
                source="sysfs",
            )


def read_cards(nvml: Any | None) -> list[GpuMemory]:
    """Every card of every driver."""
    return [*(read_nvidia(nvml) if nvml is not None else []), *read_amd()]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of this mode."""
    parser.add_argument("--once", action="store_true", help="print one line and end")


def run(args: argparse.Namespace) -> int:
    """Print a JSON list of cards every second, until nobody reads any more. Ends at once if there are no cards."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # the reader's end is ours
    nvml, pause = open_nvml(), threading.Event()
    while True:
        cards = read_cards(nvml)
        print(orjson.dumps([asdict(card) for card in cards]).decode(), flush=True)
        if args.once or not cards:
            return 0
        pause.wait(INTERVAL_S)

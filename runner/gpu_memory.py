"""Reads the memory of GPUs from their drivers, without creating a context on them: NVML, and sysfs for AMD.

A broken card can hang NVML for ever, so a host asks through `python -m runner gpu-memory`: a child that prints a line
at least once a second, and is killed when it falls silent.

A process leaves a driver's list of processes on a card when the driver has let go of its memory, which may be a while
after its end.
"""

import argparse
import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
import pynvml

from runner.core.devices.gpu_memory import GpuMemory, has_moved, normal_pci_id
from runner.core.host.environment import CARDS

KIB = 1024
# Of other users' programs nothing is asked, and of other programs nothing is of use.
_OURS = b"runner"


def nvidia_processes(handle: Any) -> tuple[tuple[int, int], ...] | None:  # the binding has no type for it
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


def read_amd_processes(sysfs: Path, proc: Path) -> dict[str, tuple[tuple[int, int], ...]]:
    """Process ids and bytes by PCI address; a process that two lists have on a card holds the larger figure.

    Compute processes stay listed until their memory is back; clients that draw come from their descriptors.
    """
    found: dict[str, dict[int, int]] = {}

    def add(pci_id: str, pid: int, count: int) -> None:
        held = found.setdefault(pci_id, {})
        held[pid] = max(held.get(pid, 0), count)

    cards = dict(_compute_cards(sysfs / "class/kfd/kfd/topology/nodes"))
    for file in (sysfs / "class/kfd/kfd/proc").glob("*/vram_*"):
        with contextlib.suppress(OSError, ValueError):
            count, gpu_id = int(file.read_text()), file.name.removeprefix("vram_")
            if count and gpu_id in cards:
                add(cards[gpu_id], int(file.parent.name), count)
    for entry in proc.iterdir():
        if entry.name.isdecimal() and _is_ours(entry):
            for pci_id, count in _clients(entry / "fdinfo"):
                add(pci_id, int(entry.name), count)
    return {pci_id: tuple(sorted(held.items())) for pci_id, held in found.items()}


def _compute_cards(nodes: Path) -> Iterator[tuple[str, str]]:
    """Yield the kernel's number of each card for compute, and its PCI address."""
    for node in nodes.glob("*"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            gpu_id = (node / "gpu_id").read_text().strip()
            lines = (line.split() for line in (node / "properties").read_text().splitlines())
            facts = {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdecimal()}
            place = facts["location_id"]
            address = f"{facts.get('domain', 0):04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7:x}"
            yield gpu_id, normal_pci_id(address)


def _is_ours(entry: Path) -> bool:
    with contextlib.suppress(OSError):
        return entry.stat().st_uid == os.getuid() and _OURS in (entry / "cmdline").read_bytes()
    return False


def _clients(directory: Path) -> Iterator[tuple[str, int]]:
    """PCI address and bytes of every client of a card that a process has; several descriptors may be one client."""
    clients: dict[tuple[str, str], int] = {}
    with contextlib.suppress(OSError):
        for file in directory.iterdir():
            with contextlib.suppress(OSError, ValueError):
                said = dict(line.split(":", 1) for line in file.read_text().splitlines() if ":" in line)
                words = said.get("drm-memory-vram", said.get("drm-resident-vram", "0")).split()
                count = int(words[0]) * (KIB if words[1:] == ["KiB"] else KIB * KIB if words[1:] == ["MiB"] else 1)
                if "drm-pdev" in said and count:
                    clients[said["drm-pdev"].strip(), said.get("drm-client-id", file.name).strip()] = count
    for (pci_id, _), count in clients.items():
        yield normal_pci_id(pci_id), count


# Under WSL a stub of the distribution may lie in the usual place; the driver's own library is here. Loaded first, it is
# also what every later search for the same name finds.
_WSL_LIBRARY = "/usr/lib/wsl/lib/libnvidia-ml.so.1"
_CARDS_MAX = 64
INTERVAL_S = 1.0
LOOK_INTERVAL_S = 0.25
# NVML lists the cards that were there when it was initialised.
REOPEN_INTERVAL_S = 30.0
SENT_AT_ONCE_BYTES = 16 * 1024 * 1024
ONCE_TIMEOUT_S = 10.0


def open_nvml() -> bool:
    """Initialise NVIDIA's management library; False where there is no driver."""
    with contextlib.suppress(OSError):
        ctypes.CDLL(_WSL_LIBRARY)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    return True


def read_nvidia() -> list[GpuMemory]:
    """Every NVIDIA card that answers. One that fell off the bus does not, and is left out."""
    try:
        driver = f"nvidia {pynvml.nvmlSystemGetDriverVersion()}"
        count = min(pynvml.nvmlDeviceGetCount(), _CARDS_MAX)
    except pynvml.NVMLError:
        return []
    cards = (_read_nvidia_card(index, driver) for index in range(count))
    return [card for card in cards if card is not None]


def _read_nvidia_card(index: int, driver: str) -> GpuMemory | None:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        pci_id = normal_pci_id(pynvml.nvmlDeviceGetPciInfo(handle).busId)
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
        processes=nvidia_processes(handle),
    )


def read_amd(sysfs: Path = Path("/sys"), proc: Path = Path("/proc")) -> list[GpuMemory]:
    """Every AMD card. The VRAM figures count all processes, which HIP's own do not."""
    cards: list[GpuMemory] = []
    processes: dict[str, tuple[tuple[int, int], ...]] | None = None
    driver = f"amdgpu {_text(sysfs / 'module/amdgpu/version') or os.uname().release}"
    for card in sorted(path.parent for path in (sysfs / "bus/pci/devices").glob("*/mem_info_vram_total")):
        with contextlib.suppress(OSError, ValueError):
            total_bytes = int((card / "mem_info_vram_total").read_text())
            used_bytes = int((card / "mem_info_vram_used").read_text())
            shared_total_bytes = int(_text(card / "mem_info_gtt_total") or 0)
            shared_used_bytes = int(_text(card / "mem_info_gtt_used") or 0)
            serial = _text(card / "unique_id")
            processes = read_amd_processes(sysfs, proc) if processes is None else processes
            cards.append(
                GpuMemory(
                    pci_id=normal_pci_id(card.name),
                    uuid=f"GPU-{serial}" if serial else "",  # as ROCm names it
                    total_bytes=total_bytes,
                    free_bytes=max(0, total_bytes - used_bytes),
                    source="sysfs",
                    driver=driver,
                    shared_total_bytes=shared_total_bytes,
                    shared_free_bytes=max(0, shared_total_bytes - shared_used_bytes),
                    processes=processes.get(normal_pci_id(card.name), ()),
                )
            )
    return cards


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text().strip()
    return ""


def read_cards(*, nvml: bool) -> list[GpuMemory]:
    """Every card of every driver."""
    return [*(read_nvidia() if nvml else []), *read_amd()]


def known_cards() -> list[GpuMemory]:
    """Return the cards, for a process that must not hang: as its host knows them, else from a child with a deadline."""
    given = os.environ.get(CARDS)
    if given is None:
        command = [sys.executable, "-m", "runner", "gpu-memory", "--once"]
        try:
            given = subprocess.run(
                command, capture_output=True, timeout=ONCE_TIMEOUT_S, check=False, text=True, stdin=subprocess.DEVNULL
            ).stdout
        except subprocess.TimeoutExpired:
            return []
    try:
        return [GpuMemory.from_report(card) for card in orjson.loads(given)]
    except (ValueError, TypeError):
        return []


def cards_as_json(cards: list[GpuMemory]) -> str:
    """Return the form in which cards are passed on."""
    return orjson.dumps([asdict(card) for card in cards]).decode()


class Asks:
    """Whatever comes on standard input asks to look for cards anew. Where nothing can come, it is only a pause."""

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        self._is_open = True
        self._pause = threading.Event()

    def came_within(self, timeout_s: float) -> bool:
        """Return True as soon as input is there, False after the time."""
        if self._is_open:
            try:
                if not select.select([self._descriptor], [], [], timeout_s)[0]:
                    return False
                self._is_open = bool(os.read(self._descriptor, select.PIPE_BUF))
            except (OSError, ValueError):
                self._is_open = False
            if self._is_open:
                return True
        self._pause.wait(timeout_s)
        return False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this mode."""
    parser.add_argument("--once", action="store_true", help="print one line and end")


def run(args: argparse.Namespace) -> int:
    """Print a JSON list of cards every second, sooner when much has changed, until the reader is gone.

    Ends at once if there are no cards. A line on standard input asks for cards that came just now.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # the reader's end is ours
    nvml, asks, is_asked = open_nvml(), Asks(), False
    opened_s = time.monotonic()
    sent: list[GpuMemory] = []
    sent_s = -INTERVAL_S
    while True:
        now_s = time.monotonic()
        if is_asked or now_s - opened_s >= REOPEN_INTERVAL_S:
            # Also where it could not be opened: cards of another driver keep this process alive.
            if nvml:
                pynvml.nvmlShutdown()
            nvml, opened_s = open_nvml(), now_s
        cards = read_cards(nvml=nvml)
        if now_s - sent_s >= INTERVAL_S or has_moved(sent, cards, threshold_bytes=SENT_AT_ONCE_BYTES):
            print(cards_as_json(cards), flush=True)
            sent, sent_s = cards, now_s
            if args.once or not cards:
                return 0
        is_asked = asks.came_within(LOOK_INTERVAL_S)

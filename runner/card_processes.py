"""Processes on a card as its driver lists them: NVML, and for AMD the kernel's lists of compute and clients.

A process leaves such a list when its driver has let go of its memory, which may be a while after its end.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml

from runner.core.devices.gpu_memory import normal_pci_id

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

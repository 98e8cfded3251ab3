"""Reads the memory and the condition of GPUs from their drivers, without creating a context: NVML, sysfs for AMD.

A broken card can hang NVML for ever, so a host asks through `python -m runner gpu-memory`: a child that prints a line
at least once a second, and is killed when it falls silent.

A process leaves a driver's list of processes on a card when the driver has let go of its memory, which may be a while
after its end.
"""

import argparse
import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import orjson

from common.sandbox.confinement import RUNNER_USERS
from runner.core.devices.gpu_memory import GpuMemory, has_moved, normal_pci_id
from runner.core.host.environment import CARDS
from runner.nvml import Nvml

KIB = 1024
# Of other users' programs nothing is asked, and of other programs nothing is of use.
_OURS = b"runner"


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
        user = entry.stat().st_uid
        return (user == os.getuid() or user in RUNNER_USERS) and _OURS in (entry / "cmdline").read_bytes()
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


# A line comes every second. While nothing moves, cards are also read no more often.
INTERVAL_S = 1.0
BUSY_INTERVAL_S = 0.25
BUSY_S = 5.0
# NVML lists the cards that were there when it was initialised.
REOPEN_INTERVAL_S = 30.0
# Requests on standard input.
LIST_ANEW = b"\n"
LOOK_CLOSELY = b"."
SENT_AT_ONCE_BYTES = 16 * 1024 * 1024
ONCE_TIMEOUT_S = 10.0


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


def read_cards(nvml: Nvml | None) -> list[GpuMemory]:
    """Every card of every driver."""
    return [*(nvml.read() if nvml is not None else []), *read_amd()]


def with_vitals(cards: list[GpuMemory], nvml: Nvml | None) -> list[GpuMemory]:
    """Add what the drivers say beside memory. It is read anew, and errors are reported once."""
    vitals = nvml.read_vitals() if nvml is not None else {}
    return [replace(card, vitals=vitals.get(card.pci_id)) for card in cards]


def known_cards() -> list[GpuMemory]:
    """Return the cards, for a process that must not hang: as its host knows them, else from a child with a deadline."""
    given = os.environ.get(CARDS)
    if given is None:
        command = [sys.executable, "-m", "runner", "gpu-memory", "--once"]
        try:
            given = subprocess.run(
                command, capture_output=True, timeout=ONCE_TIMEOUT_S, check=False, text=True, stdin=subprocess.DEVNULL
            ).stdout
        except (PermissionError, subprocess.TimeoutExpired):  # confined, which it is only without cards
            return []
    try:
        return [GpuMemory.from_report(card) for card in orjson.loads(given)]
    except (ValueError, TypeError):
        return []


def cards_as_json(cards: list[GpuMemory]) -> str:
    """Return the form in which cards are passed on."""
    return orjson.dumps([asdict(card) for card in cards]).decode()


class Asks:
    """Requests on standard input. Without a standard input it is only a pause."""

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        self._is_open = True
        self._pause = threading.Event()

    def heard_within(self, timeout_s: float) -> bytes:
        """Return input as soon as it is there, nothing after the time."""
        if self._is_open:
            try:
                if not select.select([self._descriptor], [], [], timeout_s)[0]:
                    return b""
                if heard := os.read(self._descriptor, select.PIPE_BUF):
                    return heard
            except (OSError, ValueError):
                pass
            self._is_open = False
        self._pause.wait(timeout_s)
        return b""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this mode."""
    parser.add_argument("--once", action="store_true", help="print one line and end")


def run(args: argparse.Namespace) -> int:
    """Print a JSON list of cards every second, sooner when much has changed, until the reader is gone.

    Ends at once if there are no cards.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # the reader's end is ours
    nvml, asks, heard = Nvml.open(), Asks(), b""
    opened_s = time.monotonic()
    busy_until_s = opened_s + BUSY_S
    looked: list[GpuMemory] = []
    sent: list[GpuMemory] = []
    sent_s = -INTERVAL_S
    while True:
        now_s = time.monotonic()
        if LIST_ANEW in heard or now_s - opened_s >= REOPEN_INTERVAL_S:
            # Also where it could not be opened: cards of another driver keep this process alive.
            nvml, opened_s = Nvml.open(nvml), now_s
        before, looked = looked, read_cards(nvml)
        if heard or has_moved(before, looked, threshold_bytes=SENT_AT_ONCE_BYTES):
            busy_until_s = now_s + BUSY_S
        has_errors = nvml is not None and nvml.collect_errors()
        is_time = has_errors or now_s - sent_s >= INTERVAL_S
        if is_time or has_moved(sent, looked, threshold_bytes=SENT_AT_ONCE_BYTES):
            sent, sent_s = looked, now_s
            print(cards_as_json(with_vitals(sent, nvml)), flush=True)
            if args.once or not sent:
                return 0
        heard = asks.heard_within(BUSY_INTERVAL_S if now_s < busy_until_s else INTERVAL_S)

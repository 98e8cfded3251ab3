"""Card under test: its figures from a source other than Puna, and a way to fill it."""

import csv
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

MIB = 2**20


class Card(ABC):
    """A device under test. `id`: as `runner probe` lists it."""

    id: str
    total_bytes: int
    environment: Mapping[str, str]  # of a cluster that is to use it

    @abstractmethod
    def free_bytes(self) -> int:
        """Return the free memory now."""

    @contextmanager
    @abstractmethod
    def filled(self, *, leave_bytes: int) -> Iterator[None]:
        """Another process holds its memory, but for `leave_bytes`."""
        yield


@dataclass(frozen=True)
class NvidiaCard(Card):
    """A card, as nvidia-smi tells."""

    id: str
    name: str
    pci_id: str
    total_bytes: int
    environment: Mapping[str, str]

    def free_bytes(self) -> int:
        """See Card."""
        return int(_smi("memory.free", self.id)[0][0]) * MIB

    @contextmanager
    def filled(self, *, leave_bytes: int) -> Iterator[None]:
        """See Card."""
        command = [sys.executable, "-m", "runner", "probe", "--hold", self.id, "--leave", str(leave_bytes)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline().strip().isdigit(), "the memory cannot be taken"
            try:
                yield
            finally:
                holder.communicate()


def nvidia_cards() -> list[NvidiaCard]:
    """Return the cards of this machine; none where there is no driver."""
    try:
        rows = _smi("uuid,name,pci.bus_id,memory.total")
    except (OSError, subprocess.CalledProcessError):
        return []
    return [
        NvidiaCard(
            id=uuid,
            name=name,
            pci_id=pci_id.lower(),
            total_bytes=int(total) * MIB,
            environment={"CUDA_VISIBLE_DEVICES": uuid},
        )
        for uuid, name, pci_id, total in rows
    ]


def describe_driver() -> str:
    """Return the first lines of what nvidia-smi tells about driver and cards."""
    done = subprocess.run(["nvidia-smi", "-q"], capture_output=True, text=True, check=False, timeout=60)
    return "\n".join(done.stdout.splitlines()[:20])


def _smi(fields: str, card: str = "") -> list[list[str]]:
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    done = subprocess.run(
        [*command, *(["--id", card] if card else [])], capture_output=True, text=True, check=True, timeout=60
    )
    return [[field.strip() for field in row] for row in csv.reader(done.stdout.splitlines())]

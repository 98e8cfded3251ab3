"""A build of the engine whose cards do what a test says, put in the place of the real one. Real processes."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from protos import cluster_pb2
from runner.host.devices.devices import Devices
from runner.host.processes import children
from tests.fake_nvml import Card

GIB = 1024**3
OK, SUSPECT = cluster_pb2.DEVICE_STATE_OK, cluster_pb2.DEVICE_STATE_SUSPECT
LOST, EXCLUDED = cluster_pb2.DEVICE_STATE_LOST, cluster_pb2.DEVICE_STATE_EXCLUDED
CPU = {"id": "cpu", "name": "CPU", "backend": "CPU", "type": "DEVICE_TYPE_CPU", "pool_id": "host"}


def gpu(number: int, backend: str = "CUDA") -> dict[str, Any]:
    return {
        "id": f"GPU-{number}",
        "name": f"{backend}{number}",
        "backend": backend,
        "pci_id": f"0000:0{number}:00.0",
        "type": "DEVICE_TYPE_GPU",
        "total_bytes": str(80 * GIB),
        "free_bytes": str(79 * GIB),
        "free_source": "ggml",
        "pool_id": f"GPU-{number}",
        "id_stable": True,
    }


def card(number: int, free_bytes: int = 70 * GIB) -> Card:
    return Card(bus_id=f"0000:0{number}:00.0", uuid=f"GPU-{number}", total_bytes=80 * GIB, free_bytes=free_bytes)


class Engine:
    """The fake build, put in the place of the real one."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = directory / "scenario.json"
        self.scenario: dict[str, Any] = {"backends": ["CUDA", "CPU"], "devices": [CPU, gpu(1), gpu(2)]}
        self.write()
        script = Path(__file__).with_name("fake_engine.py")
        monkeypatch.setattr(
            children, "runner_command", lambda mode, rest: [sys.executable, str(script), str(self.path), mode, *rest]
        )

    def write(self, **changes: Any) -> None:
        self.scenario |= changes
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(self.scenario))
        new.replace(self.path)

    def calls(self, mode: str = "probe") -> list[dict[str, Any]]:
        lines = self.path.with_suffix(".calls").read_text().splitlines()
        return [call for line in lines if (call := json.loads(line))["mode"] == mode]

    def card_tests(self) -> int:
        """Return the number of tests of cards."""
        return sum("--check" in call["arguments"] and "cpu" not in call["arguments"] for call in self.calls())

    def timed(self) -> int:
        """Return the number of tests that also measured the speed."""
        words = [call["arguments"] for call in self.calls()]
        return sum("--check" in line and "--no-speed" not in line for line in words)

    def listings(self) -> int:
        """Return the number of listings."""
        return sum("--check" not in call["arguments"] for call in self.calls())


def by_id(table: Devices) -> dict[str, cluster_pb2.Device]:
    return {device.id: device for device in table.devices()}

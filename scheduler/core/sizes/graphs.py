"""What compute graphs took in the last layout, by device: what the next plan is made with."""

from dataclasses import dataclass, field

from scheduler.core.sizes.splitting import DeviceKey
from scheduler.core.values.memory import MemoryReport


@dataclass(slots=True)
class Graphs:
    """Of one run of the loop."""

    last: dict[DeviceKey, int] = field(default_factory=dict)  # a device that was left out keeps what it had
    host_bytes: int = 0
    device_count: int = 0  # of the last layout

    def take(self, report: MemoryReport, node_id: str) -> None:
        """Take in a measured layout; `node_id` is the runner's."""
        for part in report.devices:
            self.last[part.node_id or node_id, part.device_id] = part.graph_bytes + part.projector_bytes
        self.device_count = sum(1 for part in report.devices if part.graph_bytes)
        self.host_bytes = report.host.graph_bytes

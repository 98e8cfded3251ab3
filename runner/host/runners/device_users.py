"""Users of the node's devices: its own runners, and runners of other nodes."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from runner.core.devices.devices import CPU_ID
from runner.core.devices.holders import HolderProcess
from runner.host import converters
from runner.host.lending.lease import Leases
from runner.host.processes.stopping import unreaped_text
from runner.host.runners.runner import HostRunner
from runner.host.runners.runner_spec import own_devices


@dataclass(frozen=True, slots=True)
class DeviceUsers:
    """Runners and leases by placement id. The supervisor changes `runners`, the lender `leases`."""

    runners: dict[str, HostRunner] = field(default_factory=dict)  # ended ones for a while, too
    leases: Leases = field(default_factory=Leases)

    def live(self) -> Iterator[HostRunner]:
        """Yield the runners that have not ended."""
        return (runner for runner in self.runners.values() if not runner.ended.is_set())

    def promised_bytes(self) -> dict[str, int]:
        """Return the bytes that live runners and borrowers hold or will hold, by device id.

        As reported, else as planned.
        """
        promised = self.leases.promised_bytes()
        for runner in self.live():
            for device, count in converters.to_need(runner.memory()).total_bytes().items():
                promised[device] = promised.get(device, 0) + count
        return promised

    def device_ids(self) -> set[str]:
        """Return the ids of this node's devices that live runners or borrowers are on."""
        own = {device_id for runner in self.live() for device_id in own_devices(runner.spec)}
        return own.union(self.leases.device_ids())

    def holders(self) -> list[HolderProcess]:
        """Return every live process that is on devices of this node."""
        own = [
            HolderProcess(
                placement_id=runner.spec.placement_id,
                device_ids=frozenset(own_devices(runner.spec)),
                pid=runner.record().pid or None,
            )
            for runner in self.live()
        ]
        return own + self.leases.holders()

    def unreaped(self) -> dict[str, str]:
        """Return why devices take no new placement, by device id: a process on them cannot be ended."""
        found = self.leases.unreaped()
        for runner in self.runners.values():
            if (pid := runner.unreaped_pid) is not None:
                spec = runner.spec
                text = f"{unreaped_text(pid)}; it is placement {spec.placement_id} of {spec.record.model_name}"
                found.update(dict.fromkeys(own_devices(spec) or [CPU_ID], text))
        return found

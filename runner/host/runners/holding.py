"""Processes of this node as they hold memory of its devices."""

from runner.core.devices.holders import HolderProcess
from runner.host.lending.lease import Lease
from runner.host.runners.runner import Runner


def holder_of(runner: Runner) -> HolderProcess:
    """A runner of this node, on this node's own devices."""
    spec = runner.spec
    own = frozenset(device.device_id for device in spec.layout.devices if not device.node_id)
    return HolderProcess(placement_id=spec.placement_id, device_ids=own, pid=runner.record().pid or None)


def holder_of_lease(lease: Lease) -> HolderProcess:
    """What a runner of another node holds here."""
    return HolderProcess(
        placement_id=lease.placement_id,
        device_ids=frozenset(share.device_id for share in lease.terms.shares),
        pid=lease.process.pid if lease.process is not None else None,
        held_bytes=dict(lease.used_bytes),
    )

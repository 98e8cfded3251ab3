"""One device as the host keeps it, and as it is reported."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from common.clock import MS_PER_S
from protos import cluster_pb2
from runner.core.devices.device_health import Condition, DeviceHealth
from runner.core.devices.device_settings import Amount, DeviceSettings, IntegratedGpus, RpcServer, amount_for
from runner.core.devices.devices import CPU_ID, HOST_POOL, DeviceType, EngineDevice
from runner.core.devices.free_figures import Figure
from runner.core.devices.gpu_memory import APPLICATION_XIDS, CardVitals
from runner.core.devices.holders import Holder
from runner.core.host.environment import VisibleDevice

STALE_AFTER_S = 2.0
_STATES = {
    Condition.UNCHECKED: cluster_pb2.DEVICE_STATE_SUSPECT,
    Condition.OK: cluster_pb2.DEVICE_STATE_OK,
    Condition.LOST: cluster_pb2.DEVICE_STATE_LOST,
    Condition.FAILED: cluster_pb2.DEVICE_STATE_EXCLUDED,
    Condition.WORN: cluster_pb2.DEVICE_STATE_EXCLUDED,
    Condition.BARRED: cluster_pb2.DEVICE_STATE_EXCLUDED,
}
NO_INTEGRATED = "integrated; PUNA_INTEGRATED_GPUS=on uses it beside a discrete GPU"
NEVER_INTEGRATED = "integrated, and PUNA_INTEGRATED_GPUS=off"


@dataclass(slots=True, kw_only=True, eq=False)
class Entry:
    """Owned by `Devices`. `device` carries the newest figures; state and settings are added when it is reported."""

    device: cluster_pb2.Device
    health: DeviceHealth
    read_at_s: float
    uuid: str = ""
    server: RpcServer | None = None  # it lends the device
    lent_number: int = 0
    unused_free_bytes: int = 0  # what was free when nothing of ours was on it
    has_card: bool = False  # a driver reports its memory
    processes: Mapping[int, int] = field(default_factory=dict)  # as the driver lists them: process id → bytes

    @property
    def id(self) -> str:
        """The device's id. Two backends may list one card: then two entries have it."""
        return self.device.id

    @property
    def is_cpu(self) -> bool:
        """It stands for the node's RAM."""
        return self.device.id == CPU_ID

    @property
    def is_stand_in(self) -> bool:
        """It is shown for a backend whose devices cannot be listed. Only another listing can tell more."""
        return self.device.id == self.device.backend

    @property
    def draws_from_ram(self) -> bool:
        """It has no memory of its own."""
        return self.device.pool_id == HOST_POOL

    @property
    def visible(self) -> VisibleDevice:
        """Return the visibility of the device for children."""
        return VisibleDevice(id=self.id, backend=self.device.backend, uuid=self.uuid)

    def facts(self) -> EngineDevice:
        """Return the facts that show whether two entries are one card."""
        device = self.device
        return EngineDevice(
            name=device.name,
            backend=device.backend,
            description=device.description,
            pci_id=device.pci_id,
            type=DeviceType(device.type or DeviceType.ACCELERATOR),
            total_bytes=device.total_bytes,
            free_bytes=device.free_bytes,
            endpoint=self.server.address if self.server is not None else "",
            lent_number=self.lent_number,
            uuid=self.uuid,
        )

    def take(self, figure: Figure, now_s: float) -> None:
        """Store a newer figure."""
        device = self.device
        device.total_bytes, device.free_bytes = figure.total_bytes, figure.free_bytes
        device.free_source = figure.source
        device.trust = cluster_pb2.TRUST_PREDICTED if figure.is_predicted else cluster_pb2.TRUST_MEASURED
        self.read_at_s = now_s

    def take_vitals(self, vitals: CardVitals, wall_unix_s: float) -> None:
        """Store a newer condition; Xid errors add up."""
        kept = self.device.vitals
        report = cluster_pb2.DeviceVitals(
            utilization=vitals.utilization,
            temperature_c=vitals.temperature_c,
            power_w=vitals.power_w,
            throttled=vitals.throttled,
            ecc_corrected=vitals.ecc_corrected,
            ecc_uncorrected=vitals.ecc_uncorrected,
            xids_application=kept.xids_application + sum(xid in APPLICATION_XIDS for xid in vitals.xids),
            xids_hardware=kept.xids_hardware + sum(xid not in APPLICATION_XIDS for xid in vitals.xids),
            last_xid=vitals.xids[-1] if vitals.xids else kept.last_xid,
            last_xid_at_unix_s=int(wall_unix_s) if vitals.xids else kept.last_xid_at_unix_s,
        )
        kept.CopyFrom(report)

    def overhead_bytes(self, settings: DeviceSettings) -> int | None:
        """Return the operator's reserve, or None."""
        return self._in_bytes(settings.overheads)

    def max_bytes(self, settings: DeviceSettings) -> int | None:
        """Return the operator's limit, or None."""
        return self._in_bytes(settings.caps)

    def _in_bytes(self, amounts: Mapping[str, Amount]) -> int | None:
        amount = amount_for(amounts, self.id, is_cpu=self.is_cpu)
        return None if amount is None else amount.of(self.device.total_bytes)

    def report(
        self,
        settings: DeviceSettings,
        *,
        now_s: float,
        beside_discrete: bool,
        doubt: str = "",
        holders: Iterable[Holder] = (),
        reserved_bytes: int = 0,
    ) -> cluster_pb2.Device:
        """Return the device as others see it: age, the operator's settings, the reason for doubt, and its users.

        What is free and reserved is not free to others.
        """
        report = cluster_pb2.Device()
        report.CopyFrom(self.device)
        for holder in holders:
            report.holders.add(placement_id=holder.placement_id, listed=holder.listed, held_bytes=holder.held_bytes)
        report.free_bytes = max(0, report.free_bytes - reserved_bytes)
        age_s = now_s - self.read_at_s
        report.free_age_ms = max(0, round(age_s * MS_PER_S))
        if age_s > STALE_AFTER_S:
            report.trust = cluster_pb2.TRUST_STALE
        report.state, report.state_reason = self._state(), self.health.reason
        if report.state == cluster_pb2.DEVICE_STATE_OK and (reason := self._left_out(settings, beside_discrete)):
            report.state, report.state_reason = cluster_pb2.DEVICE_STATE_EXCLUDED, reason
        if report.state == cluster_pb2.DEVICE_STATE_OK and doubt:
            report.state, report.state_reason = cluster_pb2.DEVICE_STATE_SUSPECT, doubt
        if report.state == cluster_pb2.DEVICE_STATE_EXCLUDED and self.health.exit_code is not None:
            report.check_exit_code = self.health.exit_code
        report.check_last_line = self.health.last_line
        overhead_bytes, max_bytes = self.overhead_bytes(settings), self.max_bytes(settings)
        if overhead_bytes is not None:
            report.overhead_bytes = overhead_bytes
        if max_bytes is not None:
            report.max_bytes = max_bytes
        if (process_bytes := self._in_bytes(settings.reserves)) is not None:
            report.process_bytes = process_bytes
        return report

    def _state(self) -> "cluster_pb2.DeviceState.ValueType":
        if self.is_cpu and self.health.condition is Condition.UNCHECKED:
            return cluster_pb2.DEVICE_STATE_PROBING  # RAM needs no test: the engine has not been heard
        return _STATES[self.health.condition]

    def _left_out(self, settings: DeviceSettings, beside_discrete: bool) -> str:
        if self.device.type != cluster_pb2.DEVICE_TYPE_INTEGRATED or settings.integrated is IntegratedGpus.ON:
            return ""
        if settings.integrated is IntegratedGpus.OFF:
            return NEVER_INTEGRATED
        return NO_INTEGRATED if beside_discrete else ""


def is_discrete(entry: Entry) -> bool:
    """Return a card with memory of its own that may be used."""
    return entry.device.type == cluster_pb2.DEVICE_TYPE_GPU and entry.health.condition is Condition.OK

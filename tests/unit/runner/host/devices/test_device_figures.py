"""Figures of memory: where each comes from, how far it may be relied on, and what limits it."""

from typing import Any

import pytest

from common.clock import SystemClock
from protos import cluster_pb2
from runner.core.devices.device_health import DeviceHealth, pass_check
from runner.core.devices.device_settings import DeviceSettings, IntegratedGpus, RpcPool, RpcServer, parse_amounts
from runner.core.devices.devices import CPU_ID, HOST_POOL
from runner.core.devices.free_figures import (
    card_figure,
    lent_figure,
    predicted_figure,
    ram_figure,
)
from runner.core.devices.gpu_memory import CardVitals, GpuMemory
from runner.core.devices.memory import HostMemory
from runner.core.host.promises import MemoryNeed, find_excess
from runner.engine.devices.rpc_hello import RpcMemory
from runner.host.devices.device_entry import Entry
from runner.host.devices.device_figures import URGENT_BYTES, DeviceFigures, ReportedFigures

pytestmark = pytest.mark.behaviour("B-131")

GIB = 1024**3
RAM = HostMemory(total_bytes=64 * GIB, free_bytes=10 * GIB, source="meminfo")


class StoppedClock(SystemClock):
    """Stands still until it is moved."""

    time_s = 100.0

    def now_s(self) -> float:
        return self.time_s


def entry(**changes: object) -> Entry:
    facts = {"id": "GPU-one", "pool_id": "GPU-one", "total_bytes": 80, "free_bytes": 60, "free_source": "ggml"}
    device = cluster_pb2.Device(**{"type": cluster_pb2.DEVICE_TYPE_GPU, **facts, **changes})  # type: ignore[arg-type]
    return Entry(device=device, health=pass_check(DeviceHealth()), read_at_s=100.0, unused_free_bytes=device.free_bytes)


def report(of: Entry, now_s: float, settings: DeviceSettings | None = None) -> cluster_pb2.Device:
    return of.report(settings or DeviceSettings(), now_s=now_s, beside_discrete=False)


def test_a_card_with_a_driver_is_as_the_driver_says() -> None:
    card = GpuMemory(pci_id="p", uuid="", total_bytes=80, free_bytes=33, source="nvml")
    figure = card_figure(card, RAM, integrated=False)
    assert (figure.total_bytes, figure.free_bytes, figure.source, figure.is_predicted) == (80, 33, "nvml", False)


def test_a_card_without_memory_of_its_own_uses_ram() -> None:
    card = GpuMemory(pci_id="p", uuid="", total_bytes=0, free_bytes=0, source="nvml", unified=True)
    assert card_figure(card, RAM, integrated=True) == ram_figure(RAM)


def test_an_integrated_card_has_its_own_part_and_what_is_left_of_ram() -> None:
    card = GpuMemory(
        pci_id="p",
        uuid="",
        total_bytes=2 * GIB,
        free_bytes=GIB,
        source="sysfs",
        shared_total_bytes=32 * GIB,
        shared_free_bytes=30 * GIB,
    )
    figure = card_figure(card, RAM, integrated=True)
    assert (figure.total_bytes, figure.free_bytes) == (34 * GIB, 11 * GIB)
    assert card_figure(card, RAM, integrated=False).total_bytes == 2 * GIB


def test_a_server_that_reports_the_machines_ram_is_never_added_to_it() -> None:
    assert lent_figure(RAM.total_bytes, RAM.total_bytes, RpcPool.AUTO, RAM) == ram_figure(RAM)
    assert lent_figure(GIB, GIB, RpcPool.HOST, RAM) == ram_figure(RAM)


def test_a_server_with_less_has_a_pool_of_its_own_that_ram_limits_too() -> None:
    small = lent_figure(20 * GIB, 15 * GIB, RpcPool.AUTO, RAM)
    assert (small.total_bytes, small.free_bytes, small.source) == (20 * GIB, 10 * GIB, "rpc")
    own = lent_figure(200 * GIB, 150 * GIB, RpcPool.OWN, RAM)
    assert (own.total_bytes, own.free_bytes) == (200 * GIB, 150 * GIB)


def test_what_nobody_can_read_is_what_was_free_before_less_what_was_promised_and_says_so() -> None:
    figure = predicted_figure(total_bytes=80, unused_free_bytes=60, promised_bytes=50)
    assert (figure.free_bytes, figure.source, figure.is_predicted) == (10, "promised", True)
    assert predicted_figure(total_bytes=80, unused_free_bytes=60, promised_bytes=90).free_bytes == 0


def test_a_driver_that_falls_silent_leaves_a_figure_that_grows_stale() -> None:
    clock = StoppedClock()
    figures = DeviceFigures(clock, promised_bytes=dict, in_use=frozenset)
    device = entry(pci_id="0000:c1:00.0")
    card = GpuMemory(pci_id="0000:c1:00.0", uuid="GPU-one", total_bytes=80, free_bytes=33, source="nvml", driver="d 1")
    figures.take_cards([device], [card], RAM)
    fresh = report(device, clock.time_s)
    assert (fresh.free_bytes, fresh.free_source, fresh.trust) == (33, "nvml", cluster_pb2.TRUST_MEASURED)
    assert fresh.driver == "d 1"
    clock.time_s += 2.5
    figures.predict([device])
    stale = report(device, clock.time_s)
    assert (stale.free_bytes, stale.trust, stale.free_age_ms) == (33, cluster_pb2.TRUST_STALE, 2500)


def test_a_card_without_memory_of_its_own_joins_the_pool_of_ram() -> None:
    figures = DeviceFigures(StoppedClock(), promised_bytes=lambda: {"GPU-one": 50}, in_use=frozenset)
    device = entry(pci_id="0000:c1:00.0")
    card = GpuMemory(pci_id="0000:c1:00.0", uuid="u", total_bytes=0, free_bytes=0, source="nvml", unified=True)
    figures.take_cards([device], [card], RAM)
    figures.predict([device])
    assert (device.device.pool_id, device.device.free_bytes) == ("host", RAM.free_bytes)
    assert figures.read_ram([device]).free_bytes == device.device.free_bytes


def lent_entry(number: int = 0) -> Entry:
    device = entry(id=f"RPC:127.0.0.1:5/{number}", pool_id="RPC:127.0.0.1:5", total_bytes=GIB, free_bytes=GIB)
    device.server, device.lent_number = RpcServer(address="127.0.0.1:5", pool=RpcPool.OWN), number
    return device


def test_a_lent_device_in_use_is_predicted_from_what_it_had_and_an_idle_one_is_asked() -> None:
    device, used = lent_entry(), set[str]()
    figures = DeviceFigures(StoppedClock(), promised_bytes=lambda: {device.id: GIB // 4}, in_use=lambda: used)
    figures.take_lent(device, RpcMemory(total_bytes=GIB, free_bytes=GIB // 2), RAM)
    figures.predict([device])
    assert (device.device.free_bytes, device.device.free_source) == (GIB // 2, "rpc")
    used.add(device.id)
    figures.predict([device])
    assert (device.device.free_bytes, device.device.free_source) == (GIB // 4, "promised")


def test_every_device_of_a_server_is_used_while_one_is() -> None:
    figures = DeviceFigures(StoppedClock(), promised_bytes=dict, in_use=lambda: {"RPC:127.0.0.1:5/1"})
    assert figures.is_used(lent_entry(0))
    assert not figures.is_used(entry())
    with figures.measuring(["GPU-one"]):
        assert figures.is_used(entry())
    assert not figures.is_used(entry())


def test_only_a_large_change_is_told_before_its_time() -> None:
    device, told = entry(free_bytes=GIB), ReportedFigures()
    assert told.has_moved([device])
    told.note([device])
    device.device.free_bytes -= URGENT_BYTES
    assert not told.has_moved([device])
    device.device.free_bytes -= 1
    assert told.has_moved([device])


def test_what_the_operator_allows_is_reported_in_bytes_of_the_device() -> None:
    settings = DeviceSettings(overheads=parse_amounts("10%"), caps=parse_amounts("GPU-one=50%"))
    told = report(entry(), 100.0, settings)
    assert (told.overhead_bytes, told.max_bytes) == (8, 40)
    plain = report(entry(), 100.0)
    assert not plain.HasField("overhead_bytes")
    assert not plain.HasField("max_bytes")


def test_a_limit_counts_over_all_placements_of_a_device() -> None:
    need = MemoryNeed(weights_bytes={"GPU-one": 30})
    limits = {"GPU-one": 100}
    assert find_excess(need, promised_bytes={"GPU-one": 70}, limits_bytes=limits) is None
    excess = find_excess(need, promised_bytes={"GPU-one": 71}, limits_bytes=limits)
    assert excess is not None
    assert (excess.needed_bytes, excess.available_bytes) == (30, 29)
    assert find_excess(need, promised_bytes={"GPU-one": 71}, limits_bytes={}) is None


@pytest.mark.parametrize(
    ("mode", "beside_discrete", "used"),
    [
        (IntegratedGpus.AUTO, False, True),
        (IntegratedGpus.AUTO, True, False),
        (IntegratedGpus.ON, True, True),
        (IntegratedGpus.OFF, False, False),
    ],
)
def test_integrated_gpus_are_used_where_the_setting_says(
    mode: IntegratedGpus, beside_discrete: bool, used: bool
) -> None:
    device = entry(type=cluster_pb2.DEVICE_TYPE_INTEGRATED)
    told = device.report(DeviceSettings(integrated=mode), now_s=100.0, beside_discrete=beside_discrete)
    assert (told.state == cluster_pb2.DEVICE_STATE_OK) is used
    assert bool(told.state_reason) is not used


@pytest.mark.parametrize(("count_swap", "free", "source"), [(False, 10, "meminfo"), (True, 13, "meminfo+swap")])
def test_swap_is_shown_with_the_cpu_and_counted_if_the_operator_says_so(
    count_swap: bool, free: int, source: str
) -> None:
    ram = HostMemory(
        total_bytes=64 * GIB,
        free_bytes=10 * GIB,
        source="meminfo",
        swap_total_bytes=4 * GIB,
        swap_free_bytes=3 * GIB,
    )
    cpu = entry(id=CPU_ID, pool_id=HOST_POOL, type=cluster_pb2.DEVICE_TYPE_CPU)
    card = entry()
    figures = DeviceFigures(StoppedClock(), promised_bytes=dict, in_use=frozenset, count_swap=count_swap)
    figures.take_ram([cpu, card], ram, 100.0)
    told = report(cpu, 100.0)
    assert (told.swap_total_bytes, told.swap_free_bytes) == (4 * GIB, 3 * GIB)
    assert (told.free_bytes, told.free_source) == (free * GIB, source)
    assert (card.device.free_bytes, card.device.swap_total_bytes) == (60, 0), "a card has memory of its own"


def test_what_the_engine_lists_is_without_what_our_own_processes_hold() -> None:
    """A host that finds runners of an earlier one would else take their bytes off twice."""
    card = entry(id="Vulkan:Vulkan0", backend="Vulkan", total_bytes=80, free_bytes=25)
    figures = DeviceFigures(StoppedClock(), promised_bytes=lambda: {card.id: 30}, in_use=lambda: {card.id})
    figures.take_listed([card], [cluster_pb2.Device(id=card.id, backend="Vulkan", free_bytes=25)])
    figures.predict([card])
    assert (card.device.free_bytes, card.device.trust) == (25, cluster_pb2.TRUST_PREDICTED)
    gone = DeviceFigures(StoppedClock(), promised_bytes=dict, in_use=frozenset)
    gone.predict([card])
    assert card.device.free_bytes == 55
    gone.take_listed([card], [cluster_pb2.Device(id=card.id, backend="Vulkan", free_bytes=90)])
    gone.predict([card])
    assert card.device.free_bytes == 80  # never more than there is


def test_a_card_whose_driver_tells_is_not_as_the_engine_says() -> None:
    card = entry(backend="CUDA")
    card.has_card = True
    figures = DeviceFigures(StoppedClock(), promised_bytes=dict, in_use=frozenset)
    figures.take_listed([card], [cluster_pb2.Device(id=card.id, backend="CUDA", free_bytes=1)])
    assert card.unused_free_bytes == 60


def test_errors_of_a_card_add_up_and_the_rest_of_its_condition_is_the_newest() -> None:
    figures, card = DeviceFigures(StoppedClock(), promised_bytes=dict, in_use=frozenset), entry(pci_id="p")

    def hear(**vitals: Any) -> cluster_pb2.DeviceVitals:
        seen = GpuMemory(pci_id="p", uuid="", total_bytes=80, free_bytes=33, source="nvml", vitals=CardVitals(**vitals))
        figures.take_cards([card], [seen], RAM)
        return report(card, 100.0).vitals

    hear(utilization=0.5, temperature_c=70, throttled=("thermal",), ecc_uncorrected=0, xids=(31, 79))
    hear(xids=(13,))
    told = hear(temperature_c=40, ecc_uncorrected=2)
    assert (told.xids_application, told.xids_hardware, told.last_xid) == (2, 1, 13)
    assert (told.HasField("utilization"), told.temperature_c, list(told.throttled)) == (False, 40, [])
    assert told.ecc_uncorrected == 2
    assert told.last_xid_at_unix_s > 0

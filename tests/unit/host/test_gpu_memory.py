"""GPU memory from a fake NVML and a fake sysfs."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from common.clock import SystemClock
from protos import cluster_pb2
from runner.core.gpu_memory import GpuMemory, find_by_address, normal_pci_id
from runner.gpu_memory import read_amd, read_nvidia
from runner.host.devices import Devices

GIB = 1024**3
NOT_SUPPORTED = 3

pytestmark = pytest.mark.behaviour("B-131")


@dataclass(frozen=True)
class Card:
    bus_id: bytes
    uuid: bytes
    total_bytes: int
    free_bytes: int
    memory_answer: int = 0


def nvml(*cards: Card) -> SimpleNamespace:
    """C functions with NVML's signatures; handles are indices + 1. The structs are written byte by byte."""

    def function(*arguments: type) -> Callable[[Callable[..., int]], object]:
        return ctypes.CFUNCTYPE(ctypes.c_int, *arguments)

    word = ctypes.POINTER(ctypes.c_uint)
    pointer = ctypes.c_void_p

    def count(out: "ctypes._Pointer[ctypes.c_uint]") -> int:
        out[0] = len(cards)
        return 0

    def handle(index: int, out: "ctypes._Pointer[ctypes.c_void_p]") -> int:
        out[0] = ctypes.c_void_p(index + 1)
        return 0

    def memory(card: int, out: int) -> int:
        facts = cards[card - 1]
        for position, value in enumerate((facts.total_bytes, facts.free_bytes, facts.total_bytes - facts.free_bytes)):
            ctypes.c_uint64.from_address(out + 8 * position).value = value
        return facts.memory_answer

    def pci(card: int, out: int) -> int:
        bus_id = cards[card - 1].bus_id + b"\0"
        ctypes.memmove(out + 16 + 5 * 4, bus_id, len(bus_id))
        return 0

    def uuid(card: int, out: int, _: int) -> int:
        name = cards[card - 1].uuid + b"\0"
        ctypes.memmove(out, name, len(name))
        return 0

    return SimpleNamespace(
        nvmlDeviceGetCount_v2=function(word)(count),
        nvmlDeviceGetHandleByIndex_v2=function(ctypes.c_uint, ctypes.POINTER(pointer))(handle),
        nvmlDeviceGetMemoryInfo=function(pointer, pointer)(memory),
        nvmlDeviceGetPciInfo_v3=function(pointer, pointer)(pci),
        nvmlDeviceGetUUID=function(pointer, pointer, ctypes.c_uint)(uuid),
    )


def test_nvidia_cards_are_read_with_uuid_and_address() -> None:
    library = nvml(Card(b"00000000:C1:00.0", b"GPU-one", 80 * GIB, 70 * GIB), Card(b"0001:02:00.0", b"GPU-two", GIB, 0))
    assert read_nvidia(library) == [
        GpuMemory(pci_id="0000:c1:00.0", uuid="GPU-one", total_bytes=80 * GIB, free_bytes=70 * GIB, source="nvml"),
        GpuMemory(pci_id="0001:02:00.0", uuid="GPU-two", total_bytes=GIB, free_bytes=0, source="nvml"),
    ]


def test_a_card_that_tells_no_memory_is_left_out() -> None:
    assert read_nvidia(nvml(Card(b"0:1:0.0", b"GPU-igpu", 1, 1, memory_answer=NOT_SUPPORTED))) == []


def test_amd_cards_are_read_from_sysfs_over_all_processes(tmp_path: Path) -> None:
    card = tmp_path / "bus/pci/devices/0000:03:00.0"
    card.mkdir(parents=True)
    (card / "mem_info_vram_total").write_text(f"{16 * GIB}\n")
    (card / "mem_info_vram_used").write_text(f"{4 * GIB}\n")
    (tmp_path / "bus/pci/devices/0000:04:00.0").mkdir()
    assert read_amd(tmp_path) == [
        GpuMemory(pci_id="0000:03:00.0", uuid="", total_bytes=16 * GIB, free_bytes=12 * GIB, source="sysfs")
    ]


@pytest.mark.parametrize("text", ["00000000:C1:00.0", "0000:c1:00.0", "0:C1:00.0"])
def test_addresses_are_compared_as_the_engine_writes_them(text: str) -> None:
    assert normal_pci_id(text) == "0000:c1:00.0"


def test_a_device_without_address_is_no_card() -> None:
    card = GpuMemory(pci_id="", uuid="", total_bytes=1, free_bytes=1, source="nvml")
    assert find_by_address([card], "") is None


class StoppedClock(SystemClock):
    """Stands still until it is moved."""

    time_s = 100.0

    def now_s(self) -> float:
        return self.time_s


def gpu(**changes: object) -> cluster_pb2.Device:
    facts = {"id": "GPU-one", "pool_id": "GPU-one", "total_bytes": 80, "free_bytes": 60, "free_source": "ggml"}
    return cluster_pb2.Device(**{**facts, **changes}, state=cluster_pb2.DEVICE_STATE_OK)  # type: ignore[arg-type]


def test_a_figure_of_the_driver_replaces_that_of_the_probe_and_grows_stale_without_news() -> None:
    clock = StoppedClock()
    devices = Devices(clock)
    devices._take([gpu(pci_id="0000:c1:00.0")], "build")
    card = GpuMemory(pci_id="0000:c1:00.0", uuid="GPU-one", total_bytes=80, free_bytes=33, source="nvml")
    devices.take_cards([card])
    (device,) = devices.devices()
    assert (device.free_bytes, device.free_source, device.trust) == (33, "nvml", cluster_pb2.TRUST_MEASURED)
    clock.time_s += 2.5
    devices._predict()
    (device,) = devices.devices()
    assert (device.free_bytes, device.trust, device.free_age_ms) == (33, cluster_pb2.TRUST_STALE, 2500)


def test_without_a_driver_to_ask_free_memory_is_what_was_not_promised_and_says_so() -> None:
    devices = Devices(StoppedClock(), promised_bytes=lambda: {"GPU-one": 50})
    devices._take([gpu()], "build")
    devices._predict()
    (device,) = devices.devices()
    assert (device.free_bytes, device.trust) == (30, cluster_pb2.TRUST_PREDICTED)

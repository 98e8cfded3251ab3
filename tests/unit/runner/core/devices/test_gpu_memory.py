"""GPU memory from a fake sysfs, and what becomes of it."""

import argparse
import os
import signal
from pathlib import Path

import pytest

from runner import gpu_memory
from runner.core.devices.gpu_memory import GpuMemory, find_card, find_seen, has_moved, normal_pci_id
from runner.core.host.environment import cards_left
from runner.gpu_memory import Asks, read_amd
from runner.nvml import Nvml

GIB = 1024**3

pytestmark = pytest.mark.behaviour("B-131")


def amd_card(sysfs: Path, address: str, **files: object) -> None:
    card = sysfs / "bus/pci/devices" / address
    card.mkdir(parents=True)
    for name, content in files.items():
        (card / name).write_text(f"{content}\n")


def test_amd_cards_are_read_from_sysfs_over_all_processes(tmp_path: Path) -> None:
    amd_card(
        tmp_path,
        "0000:03:00.0",
        mem_info_vram_total=16 * GIB,
        mem_info_vram_used=4 * GIB,
        mem_info_gtt_total=8 * GIB,
        mem_info_gtt_used=GIB,
        unique_id="abc123",
    )
    amd_card(tmp_path, "0000:04:00.0")
    (tmp_path / "module/amdgpu").mkdir(parents=True)
    (tmp_path / "module/amdgpu/version").write_text("6.8\n")
    (tmp_path / "proc").mkdir()
    assert read_amd(tmp_path, tmp_path / "proc") == [
        GpuMemory(
            pci_id="0000:03:00.0",
            uuid="GPU-abc123",
            total_bytes=16 * GIB,
            free_bytes=12 * GIB,
            source="sysfs",
            driver="amdgpu 6.8",
            shared_total_bytes=8 * GIB,
            shared_free_bytes=7 * GIB,
            processes=(),
        )
    ]


def test_an_amd_card_without_serial_or_shared_memory_is_a_card_too(tmp_path: Path) -> None:
    amd_card(tmp_path, "0000:03:00.0", mem_info_vram_total=GIB, mem_info_vram_used=2 * GIB)
    (card,) = read_amd(tmp_path)
    assert (card.uuid, card.free_bytes, card.shared_total_bytes) == ("", 0, 0)
    assert card.driver.startswith("amdgpu ")


def test_a_card_more_or_less_or_much_memory_moved_is_told_at_once() -> None:
    def card(pci_id: str, free_bytes: int) -> GpuMemory:
        return GpuMemory(pci_id=pci_id, uuid="", total_bytes=100, free_bytes=free_bytes, source="nvml")

    before = [card("a", 50), card("b", 50)]
    assert not has_moved(before, [card("a", 59), card("b", 41)], threshold_bytes=10)
    assert has_moved(before, [card("a", 61), card("b", 50)], threshold_bytes=10)
    assert has_moved(before, before[:1], threshold_bytes=10)


@pytest.mark.parametrize("text", ["00000000:C1:00.0", "0000:c1:00.0", "0:C1:00.0"])
def test_addresses_are_compared_as_the_engine_writes_them(text: str) -> None:
    assert normal_pci_id(text) == "0000:c1:00.0"


def test_a_device_without_address_is_no_card() -> None:
    card = GpuMemory(pci_id="", uuid="", total_bytes=1, free_bytes=1, source="nvml")
    assert find_card([card], "", "cpu") is None


def mig(uuid: str, free_bytes: int = 5) -> GpuMemory:
    return GpuMemory(pci_id="0000:c1:00.0", uuid=uuid, total_bytes=10, free_bytes=free_bytes, source="nvml")


@pytest.mark.behaviour("B-131")
def test_a_slice_is_found_by_its_uuid_and_never_taken_for_its_card() -> None:
    cards = [mig("MIG-a"), mig("MIG-b")]
    assert find_card(cards, "0000:c1:00.0", "MIG-b") == cards[1]
    assert find_card(cards, "0000:c1:00.0", "MIG-gone") is None
    assert find_card(cards, "0000:c1:00.0", "GPU-card") is None, "MIG was switched on after the card was listed"
    assert find_card([mig("GPU-card")], "0000:c1:00.0", "MIG-a") is None


@pytest.mark.parametrize(
    ("limit", "found"), [(None, "MIG-a"), ("MIG-b", "MIG-b"), ("1", "MIG-b"), ("MIG-b,MIG-a", "MIG-b"), ("MIG-x", None)]
)
def test_a_process_sees_the_first_slice_that_it_is_limited_to(limit: str | None, found: str | None) -> None:
    cards = [mig("MIG-a"), mig("MIG-b")]
    limits = {} if limit is None else {"CUDA_VISIBLE_DEVICES": limit}
    visible = cards_left([card.uuid for card in cards], backend="CUDA", limits=limits)
    seen = find_seen(cards, "0000:c1:00.0", visible)
    assert (seen.uuid if seen is not None else None) == found


def test_memory_that_moves_in_the_second_slice_of_a_card_is_told_at_once() -> None:
    before = [mig("MIG-a"), mig("MIG-b")]
    assert not has_moved(before, before, threshold_bytes=1)
    assert has_moved(before, [mig("MIG-a"), mig("MIG-b", 1)], threshold_bytes=1)
    assert has_moved(before, [mig("MIG-a"), mig("MIG-c")], threshold_bytes=1)


def kernel_files(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.mark.behaviour("B-137")
def test_the_processes_of_amd_cards_are_those_that_compute_and_those_that_draw(tmp_path: Path) -> None:
    amd_card(tmp_path, "0000:03:00.0", mem_info_vram_total=GIB, mem_info_vram_used=0)
    amd_card(tmp_path, "0001:44:00.0", mem_info_vram_total=GIB, mem_info_vram_used=0)
    kernel_files(
        tmp_path,
        {
            "class/kfd/kfd/topology/nodes/0/gpu_id": "0\n",
            "class/kfd/kfd/topology/nodes/1/gpu_id": "4711\n",
            "class/kfd/kfd/topology/nodes/1/properties": "simd_count 64\nlocation_id 768\ndomain 0\n",
            "class/kfd/kfd/topology/nodes/2/gpu_id": "99\n",
            "class/kfd/kfd/topology/nodes/2/properties": f"location_id {0x4400}\ndomain 1\n",
            # The kernel keeps a process that has ended until its memory is back.
            "class/kfd/kfd/proc/500/vram_4711": f"{GIB // 2}\n",
            "class/kfd/kfd/proc/500/vram_99": "0\n",
            "proc/600/cmdline": "python\0-m\0runner\0serve",
            "proc/600/fdinfo/7": "drm-pdev:\t0001:44:00.0\ndrm-client-id:\t3\ndrm-memory-vram:\t2048 KiB\n",
            "proc/600/fdinfo/8": "drm-pdev:\t0001:44:00.0\ndrm-client-id:\t3\ndrm-memory-vram:\t2048 KiB\n",
            "proc/600/fdinfo/9": "pos:\t0\n",
            "proc/700/cmdline": "/usr/bin/Xorg",
            "proc/700/fdinfo/7": "drm-pdev:\t0001:44:00.0\ndrm-client-id:\t1\ndrm-memory-vram:\t9 KiB\n",
        },
    )
    first, second = read_amd(tmp_path, tmp_path / "proc")
    assert first.processes == ((500, GIB // 2),)
    assert second.processes == ((600, 2048 * 1024),)


def test_a_driver_that_comes_up_late_is_heard_beside_one_that_tells_already(monkeypatch: pytest.MonkeyPatch) -> None:
    amd = GpuMemory(pci_id="0000:03:00.0", uuid="", total_bytes=GIB, free_bytes=GIB, source="sysfs")
    comes_up = iter([False, False, True])
    turns = iter(range(50))
    heard: list[bool] = []

    def read_cards(nvml: Nvml | None) -> list[GpuMemory]:
        heard.append(nvml is not None)
        return [] if nvml is not None or next(turns, None) is None else [amd]

    monkeypatch.setattr(Nvml, "open", lambda *_: Nvml() if next(comes_up) else None)
    monkeypatch.setattr(gpu_memory, "read_cards", read_cards)
    monkeypatch.setattr(gpu_memory, "REOPEN_INTERVAL_S", 0.0)
    monkeypatch.setattr(gpu_memory, "BUSY_INTERVAL_S", 0.0)
    before = signal.getsignal(signal.SIGPIPE)
    try:
        assert gpu_memory.run(argparse.Namespace(once=False)) == 0
    finally:
        signal.signal(signal.SIGPIPE, before)
    assert heard == [False, True]


def test_a_word_on_standard_input_asks_for_the_cards_of_now_and_an_end_of_it_never_does() -> None:
    hears, asks = os.pipe()
    try:
        listening = Asks(hears)
        assert not listening.heard_within(0)
        os.write(asks, b"\n.")
        assert listening.heard_within(60) == b"\n."
        assert not listening.heard_within(0)
        os.close(asks)
        assert not listening.heard_within(0)
        assert not listening.heard_within(0)
    finally:
        os.close(hears)


def test_the_library_lists_anew_when_it_is_asked_for_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    turns = iter(range(6))
    turn = 0

    def open_nvml(*_: object) -> None:
        opened.append(turn)

    def read_cards(_: Nvml | None) -> list[GpuMemory]:
        nonlocal turn
        turn = next(turns, -1)
        card = GpuMemory(pci_id="0000:03:00.0", uuid="", total_bytes=GIB, free_bytes=turn * GIB, source="sysfs")
        return [card] if turn >= 0 else []

    monkeypatch.setattr(Nvml, "open", open_nvml)
    monkeypatch.setattr(gpu_memory, "read_cards", read_cards)
    monkeypatch.setattr(gpu_memory.Asks, "heard_within", lambda *_: gpu_memory.LIST_ANEW if turn == 2 else b"")
    before = signal.getsignal(signal.SIGPIPE)
    try:
        assert gpu_memory.run(argparse.Namespace(once=False)) == 0
    finally:
        signal.signal(signal.SIGPIPE, before)
    assert opened == [0, 2]

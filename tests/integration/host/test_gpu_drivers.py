"""GPU memory as the drivers tell it: a library of our own in place of NVIDIA's, read by a real child."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner import gpu_memory
from runner.core.devices.gpu_memory import CardVitals, GpuMemory
from runner.core.host.environment import CARDS
from tests.fake_nvml import GPU_IS_LOST, NOT_SUPPORTED, Card, FakeNvml, Slice, Vitals

ROOT = Path(__file__).resolve().parents[3]
GIB = 1024**3
ONE = Card(bus_id="00000000:C1:00.0", uuid="GPU-one", total_bytes=80 * GIB, free_bytes=70 * GIB)
TWO = Card(bus_id="0001:02:00.0", uuid="GPU-two", total_bytes=GIB, free_bytes=0)

pytestmark = pytest.mark.behaviour("B-131")


@pytest.fixture
def library(tmp_path: Path) -> FakeNvml:
    return FakeNvml(tmp_path)


def told(library: FakeNvml) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "runner", "gpu-memory", "--once"],
        cwd=ROOT,
        env={**os.environ, **library.environment},
        capture_output=True,
        timeout=30,
        check=True,
    )
    cards: list[dict[str, Any]] = json.loads(done.stdout)
    return cards


def test_nvidia_cards_are_read_with_uuid_address_and_driver(library: FakeNvml) -> None:
    library.tell(ONE, TWO, driver="999.1")
    first, second = (GpuMemory.from_report(card) for card in told(library))
    assert first == GpuMemory(
        pci_id="0000:c1:00.0",
        uuid="GPU-one",
        total_bytes=80 * GIB,
        free_bytes=70 * GIB,
        source="nvml",
        driver="nvidia 999.1",
        processes=(),
        vitals=CardVitals(),
    )
    assert (second.pci_id, second.uuid, second.free_bytes) == ("0001:02:00.0", "GPU-two", 0)


@pytest.mark.behaviour("B-137")
def test_the_processes_of_a_card_are_told_and_one_that_leaves_is_told_at_once(library: FakeNvml) -> None:
    busy = replace(ONE, processes=((4321, 3 * GIB), (77, GIB)))
    library.tell(busy)
    with subprocess.Popen(
        [sys.executable, "-m", "runner", "gpu-memory"],
        cwd=ROOT,
        env={**os.environ, **library.environment},
        stdout=subprocess.PIPE,
    ) as reader:
        assert reader.stdout is not None
        card = GpuMemory.from_report(json.loads(reader.stdout.readline())[0])
        assert card.processes == ((77, GIB), (4321, 3 * GIB))
        library.tell(replace(ONE, processes=((77, GIB),)))
        while (card := GpuMemory.from_report(json.loads(reader.stdout.readline())[0])).processes != ((77, GIB),):
            assert card.processes == ((77, GIB), (4321, 3 * GIB))
        library.tell()
        while json.loads(reader.stdout.readline()):
            pass
        assert reader.wait(10) == 0


def test_a_card_that_knows_no_memory_of_its_own_is_told_to_use_ram(library: FakeNvml) -> None:
    library.tell(Card(bus_id="000F:01:00.0", uuid="GPU-u", total_bytes=1, free_bytes=1, memory_answer=NOT_SUPPORTED))
    (card,) = told(library)
    assert (card["unified"], card["total_bytes"], card["uuid"]) == (True, 0, "GPU-u")


def test_a_card_that_fell_off_the_bus_is_left_out(library: FakeNvml) -> None:
    library.tell(ONE, Card(bus_id="0:2:0.0", uuid="GPU-x", total_bytes=1, free_bytes=1, answer=GPU_IS_LOST))
    assert [card["uuid"] for card in told(library)] == ["GPU-one"]


def test_a_change_is_told_at_once_and_otherwise_a_line_comes_every_second(library: FakeNvml) -> None:
    library.tell(ONE)
    with subprocess.Popen(
        [sys.executable, "-m", "runner", "gpu-memory"],
        cwd=ROOT,
        env={**os.environ, **library.environment},
        stdout=subprocess.PIPE,
    ) as reader:
        assert reader.stdout is not None
        assert json.loads(reader.stdout.readline())[0]["free_bytes"] == 70 * GIB
        library.tell(Card(bus_id=ONE.bus_id, uuid=ONE.uuid, total_bytes=ONE.total_bytes, free_bytes=5 * GIB))
        assert json.loads(reader.stdout.readline())[0]["free_bytes"] == 5 * GIB
        library.tell()
        assert json.loads(reader.stdout.readline()) == []
        assert reader.wait(10) == 0  # nothing is left to tell


def test_a_runner_takes_its_hosts_word_for_the_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    card = GpuMemory(pci_id="p", uuid="u", total_bytes=2, free_bytes=1, source="nvml")
    monkeypatch.setenv(CARDS, gpu_memory.cards_as_json([card]))
    assert gpu_memory.known_cards() == [card]


def test_by_hand_a_runner_asks_in_a_process_of_its_own_and_not_for_ever(
    library: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(CARDS, raising=False)
    monkeypatch.setenv("LD_LIBRARY_PATH", library.environment["LD_LIBRARY_PATH"])
    library.tell(ONE)
    assert [card.uuid for card in gpu_memory.known_cards()] == ["GPU-one"]
    library.hang()
    monkeypatch.setattr(gpu_memory, "ONCE_TIMEOUT_S", 1.0)
    assert gpu_memory.known_cards() == []


def test_the_condition_of_a_card_is_read_beside_its_memory(library: FakeNvml) -> None:
    vitals = Vitals(
        utilization_percent=93,
        temperature_c=84,
        power_mw=612_500,
        throttled=0x1 | 0x4 | 0x20,  # idle, which is no throttling; power cap; thermal slowdown by software
        ecc_corrected=12,
        ecc_uncorrected=1,
    )
    library.tell(replace(ONE, vitals=vitals), TWO)
    first, second = (GpuMemory.from_report(card).vitals for card in told(library))
    assert first == CardVitals(
        utilization=0.93,
        temperature_c=84,
        power_w=612.5,
        throttled=("power", "thermal"),
        ecc_corrected=12,
        ecc_uncorrected=1,
    )
    assert second == CardVitals(), "a card that supports none of it"


@contextmanager
def followed(library: FakeNvml) -> Iterator[Callable[[], list[GpuMemory]]]:
    """Run the reader; the function returns its next line."""
    with subprocess.Popen(
        [sys.executable, "-m", "runner", "gpu-memory"],
        cwd=ROOT,
        env={**os.environ, **library.environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as reader:
        assert reader.stdout is not None
        stdout = reader.stdout
        try:
            yield lambda: [GpuMemory.from_report(card) for card in json.loads(stdout.readline())]
        finally:
            reader.terminate()


def test_an_error_of_a_card_is_reported_once_and_with_its_card(library: FakeNvml) -> None:
    library.tell(ONE, TWO)
    library.raise_xid(ONE, 31)  # of before
    with followed(library) as cards:
        assert [card.vitals for card in cards()] == [CardVitals(), CardVitals()]
        library.raise_xid(TWO, 79)
        library.raise_xid(TWO, 13)
        reported = [0, 0]
        while not all(reported):
            first, second = (card.vitals for card in cards())
            assert first == CardVitals()
            assert second is not None
            reported = [reported[0] + second.xids.count(79), reported[1] + second.xids.count(13)]
        assert reported == [1, 1]
        assert [card.vitals for card in cards()] == [CardVitals(), CardVitals()]


def test_cards_are_read_once_a_second_while_nothing_moves(library: FakeNvml) -> None:
    library.tell(ONE)
    with followed(library) as cards:
        for _ in range(math.ceil(gpu_memory.BUSY_S) + 2):  # it begins busy
            cards()
        library.count_readings()
        for _ in range(4):
            cards()
        # Two calls list the cards for each line: one for memory, one for the rest.
        assert library.count_readings() <= 2 * 4 + 2
        library.tell(replace(ONE, free_bytes=GIB))
        while cards()[0].free_bytes != GIB:
            pass
        library.count_readings()
        for _ in range(3):
            cards()
        assert library.count_readings() >= 3 * 3, "a card that moves is read several times a second"


def test_a_card_in_mig_mode_is_reported_as_its_slices_with_their_own_memory(library: FakeNvml) -> None:
    slices = (
        Slice(uuid="MIG-11111111-aaaa", total_bytes=10 * GIB, free_bytes=9 * GIB, processes=((4321, GIB),)),
        Slice(uuid="MIG-22222222-bbbb", total_bytes=40 * GIB, free_bytes=39 * GIB),
    )
    library.tell(replace(ONE, slices=slices), TWO)
    cards = [GpuMemory.from_report(card) for card in told(library)]
    assert [(card.uuid, card.pci_id, card.total_bytes, card.free_bytes, card.processes) for card in cards] == [
        ("MIG-11111111-aaaa", "0000:c1:00.0", 10 * GIB, 9 * GIB, ((4321, GIB),)),
        ("MIG-22222222-bbbb", "0000:c1:00.0", 40 * GIB, 39 * GIB, ()),
        ("GPU-two", "0001:02:00.0", GIB, 0, ()),
    ]

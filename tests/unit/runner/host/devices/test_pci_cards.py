"""The cards on the PCI bus, from a fake sysfs."""

from pathlib import Path

import pytest

from runner.host.devices.hot_plug import read_pci_cards
from tests.fake_pci import plug_in

pytestmark = pytest.mark.behaviour("B-130")


def test_graphics_cards_and_accelerators_are_listed_with_their_drivers(tmp_path: Path) -> None:
    plug_in(tmp_path, "0000:03:00.0", driver="amdgpu", version="6.8")
    plug_in(tmp_path, "0000:C4:00.0", pci_class="0x030200")
    plug_in(tmp_path, "0000:05:00.0", pci_class="0x120000", driver="habanalabs")
    plug_in(tmp_path, "0000:06:00.0", pci_class="0x020000", driver="e1000")  # a network card
    assert read_pci_cards(tmp_path) == {
        "0000:03:00.0": "amdgpu 6.8",
        "0000:05:00.0": "habanalabs",
        "0000:c4:00.0": "",
    }


def test_a_machine_without_a_pci_bus_has_none(tmp_path: Path) -> None:
    assert read_pci_cards(tmp_path) == {}

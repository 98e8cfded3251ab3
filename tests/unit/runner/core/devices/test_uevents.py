"""Messages of the kernel about hardware, and lists of cards."""

import pytest

from runner.core.devices.card_changes import CardChanges, Uevent, compare_cards, concerns_cards, parse_uevent

pytestmark = pytest.mark.behaviour("B-130")


def message(path: str, subsystem: str, action: str = "add") -> bytes:
    lines = [f"{action}@{path}", f"ACTION={action}", f"DEVPATH={path}", f"SUBSYSTEM={subsystem}", "SEQNUM=15578", ""]
    return "\0".join(lines).encode()


def test_a_message_of_the_kernel_is_read() -> None:
    read = parse_uevent(message("/devices/pci0000:00/0000:00:04.0", "pci", "remove"))
    assert read == Uevent(action="remove", path="/devices/pci0000:00/0000:00:04.0", subsystem="pci")


@pytest.mark.parametrize("raw", [b"libudev\0\xfe\xed\xca\xfe\0\0\0(", b"", b"\0\0", b"\xff\xfe"])
def test_what_the_kernel_did_not_write_is_no_message(raw: bytes) -> None:
    assert parse_uevent(raw) is None


@pytest.mark.parametrize(
    ("path", "subsystem", "concerns"),
    [
        ("/devices/pci0000:00/0000:00:04.0", "pci", True),
        ("/devices/pci0000:00/0000:00:04.0/drm/card1", "drm", True),
        ("/devices/virtual/kfd/kfd", "kfd", True),
        ("/devices/virtual/misc/kfd", "misc", True),
        ("/module/nvidia_uvm", "module", True),
        ("/module/amdgpu", "module", True),
        ("/module/dm-crypt", "module", False),
        ("/devices/virtual/misc/fuse", "misc", False),
        ("/devices/virtual/net/veth0", "net", False),
        ("/devices/virtual/block/loop0", "block", False),
        ("/devices/virtual/net/nvidia", "", False),
    ],
)
def test_only_what_may_be_a_card_or_its_driver_counts(path: str, subsystem: str, concerns: bool) -> None:
    event = parse_uevent(message(path, subsystem))
    assert event is not None
    assert concerns_cards(event) is concerns


def test_lists_are_compared_by_address_and_driver() -> None:
    before = {"a": "amdgpu 6.8", "b": "", "c": "xe"}
    assert not compare_cards(before, dict(before))
    assert compare_cards(before, {"b": "vfio-pci", "c": "xe", "d": "xe"}) == CardChanges(
        came=frozenset("d"), gone=frozenset("a"), changed=frozenset("b")
    )

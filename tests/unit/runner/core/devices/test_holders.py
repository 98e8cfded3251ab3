"""Owners of memory on a device: live processes, and ended ones whose memory the driver still holds."""

import pytest

from runner.core.devices.holders import Holder, HolderProcess, Holders

pytestmark = pytest.mark.behaviour("B-137")
RUNNER = HolderProcess(placement_id="p1", device_ids=frozenset({"g0", "g1"}), pid=10)
LEASE = HolderProcess(placement_id="p2", device_ids=frozenset({"g1"}), pid=None, held_bytes={"g1": 7})


def test_a_process_that_lives_is_on_its_devices_whatever_drivers_list() -> None:
    holders = Holders()
    living = [RUNNER, LEASE]
    holders.see(living, [])
    assert holders.on("g0", living, {}) == [Holder(placement_id="p1", listed=False, held_bytes=0)]
    assert holders.on("g1", living, {10: 99, 11: 5}) == [
        Holder(placement_id="p1", listed=True, held_bytes=99),
        Holder(placement_id="p2", listed=False, held_bytes=7),
    ]


def test_a_process_that_has_ended_stays_for_as_long_as_its_driver_lists_it() -> None:
    holders = Holders()
    holders.see([RUNNER], [10])
    holders.see([], [10])
    assert holders.on("g0", [], {10: 3}) == [Holder(placement_id="p1", listed=True, held_bytes=3)]
    assert holders.on("g1", [], {}) == []
    holders.see([], [])
    holders.see([], [10])
    assert holders.on("g0", [], {10: 3}) == [], "another process of this number"


def test_a_number_that_is_used_again_is_the_new_process() -> None:
    holders = Holders()
    holders.see([RUNNER], [10])
    other = HolderProcess(placement_id="p3", device_ids=frozenset({"g0"}), pid=10)
    holders.see([other], [10])
    assert holders.on("g0", [other], {10: 3}) == [Holder(placement_id="p3", listed=True, held_bytes=3)]

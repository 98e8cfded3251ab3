"""Restoring against computing."""

import pytest

from runner.core.states.gate import STEP_DELAY_S, CopySpeed, RestoreGate, Tier

GIB = 2**30


def test_a_state_is_restored_where_that_is_faster() -> None:
    gate = RestoreGate()
    assert gate.restores(Tier.RAM, size_bytes=GIB, saved_s=10.0)
    assert not gate.restores(Tier.DISK, size_bytes=GIB, saved_s=10.0)


def test_a_slow_disk_is_found_out_and_a_fast_one_too() -> None:
    slow, fast = RestoreGate(), RestoreGate()
    for _ in range(20):
        slow.see(Tier.DISK, size_bytes=GIB, seconds=GIB / 50e6)
        fast.see(Tier.DISK, size_bytes=GIB, seconds=GIB / 2e9)
    assert not slow.restores(Tier.DISK, size_bytes=GIB, saved_s=15.0)
    assert fast.restores(Tier.DISK, size_bytes=GIB, saved_s=1.0)


def test_near_the_border_the_last_decision_stays() -> None:
    gate = RestoreGate()
    for _ in range(50):
        gate.see(Tier.RAM, size_bytes=GIB, seconds=1.002)
    assert gate.restores(Tier.RAM, size_bytes=GIB, saved_s=1.1)
    assert not gate.restores(Tier.RAM, size_bytes=GIB, saved_s=0.9)
    assert not gate.restores(Tier.RAM, size_bytes=GIB, saved_s=1.1), "just closed"
    assert gate.restores(Tier.RAM, size_bytes=GIB, saved_s=1.5)


def test_one_copy_during_a_stall_changes_little() -> None:
    copies = CopySpeed()
    for _ in range(20):
        copies.see(size_bytes=GIB, seconds=0.5)
    copies.see(size_bytes=GIB, seconds=50.0)
    assert copies.seconds(GIB) < 0.7


def test_a_slice_is_as_large_as_its_copy_and_its_joining_leave_time_for() -> None:
    copies = CopySpeed()
    for _ in range(40):
        copies.see(size_bytes=GIB, seconds=GIB / 5e9)
        copies.see_join(size_bytes=GIB, seconds=GIB / 5e9)
    fast = copies.slice_tokens(1000.0)
    assert fast == pytest.approx(STEP_DELAY_S * 2.5e9 / 1000, rel=0.01)
    for _ in range(40):
        copies.see_join(size_bytes=GIB, seconds=GIB / 0.25e9)
    assert copies.slice_tokens(1000.0) < fast / 9

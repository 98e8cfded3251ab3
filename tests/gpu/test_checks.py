"""The checks of cards on a lent device with a real limit, so that the first card meets checks that work."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.gpu import checks
from tests.gpu.__main__ import run_checks
from tests.gpu.card import Card
from tests.gpu.endless_kernel import NoCuda, launch_endless_kernel
from tests.limited_device import LimitedDevice, limited_device

MIB = 900


@dataclass(frozen=True)
class LentCard(Card):
    """A lent device that is taken for a card."""

    device: LimitedDevice
    id: str
    total_bytes: int
    environment: Mapping[str, str]

    def free_bytes(self) -> int:
        return self.total_bytes - self.device.used_bytes()

    @contextlib.contextmanager
    def filled(self, *, leave_bytes: int) -> Iterator[None]:
        self.device.take(leave_bytes=leave_bytes)
        try:
            yield
        finally:
            self.device.give_back()


@pytest.mark.timeout(600)
def test_the_checks_pass_on_a_lent_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "ROUNDS", 2)
    # A lent processor of a busy machine would compute for longer than a step of a card may take.
    monkeypatch.setattr(checks, "PROMPT_WORDS", 200)
    with limited_device(mib=MIB) as device:
        card = LentCard(device, device.id, device.total_bytes, {"PUNA_RPC_DEVICES": device.address})
        names = [name for name in checks.CHECKS if name != "endless kernel"]
        rows = run_checks(card, ["57m"], names, tmp_path)
    assert [row["error"] for row in rows] == [""] * len(names)
    assert [figure for row in rows for figure in row["figures"] if not figure["met"]] == []


def test_an_endless_kernel_without_a_driver_is_an_error() -> None:
    with contextlib.suppress(OSError), pytest.raises(NoCuda, match="libcuda"):
        launch_endless_kernel()

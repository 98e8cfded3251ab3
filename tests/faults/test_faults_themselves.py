"""A fault that did not happen is noticed, so that no test passes for nothing."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.faults import faults
from tests.faults.faults import FaultDidNotHappen, Killed, Stopped, broken, process_state


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield child
    child.kill()
    child.communicate()


def test_a_stopped_process_is_seen_as_stopped_and_goes_on(process: "subprocess.Popen[bytes]") -> None:
    with broken(Stopped(process.pid)):
        assert process_state(process.pid) == "T"
    assert process_state(process.pid) != "T"


def test_a_killed_process_is_seen_as_dead(process: "subprocess.Popen[bytes]") -> None:
    with broken(Killed(process.pid)):
        assert process_state(process.pid) in ("", "Z")


@pytest.mark.parametrize("kind", [Killed, Stopped])
def test_the_wrong_target_fails_loudly(
    kind: type[Killed] | type[Stopped], process: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "HAPPENS_WITHIN_S", 0.2)
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    fault = kind(bystander.pid)
    fault.inject()
    fault.pid = process.pid  # what the test believes that it broke
    with pytest.raises(FaultDidNotHappen):
        fault.verify()
    bystander.kill()
    bystander.communicate()

"""The end of the link to the host."""

import threading
from pathlib import Path

import pytest

from runner.serve import state_link
from runner.serve.state_link import StateLink


def test_a_link_that_is_closed_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_link, "_LOOK_S", 600.0)  # so that a thread that nothing wakes is still there
    before = set(threading.enumerate())
    link = StateLink(str(tmp_path / "states"), lambda _salt, done: done(), lambda command: command())
    link.start()
    started = set(threading.enumerate()) - before
    assert len(started) == 3
    link.close()
    assert not any(thread.is_alive() for thread in started)

"""Garbage is not looked for while a process imports, and is as soon as it has."""

import asyncio
import gc
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from common.errors import StartupError
from common.service import run_service
from runner.__main__ import main


@pytest.fixture
def importing() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


class Refused:
    @classmethod
    def load(cls) -> Any:
        raise StartupError("no")


async def serve(settings: Any, stop: asyncio.Event) -> None:
    raise AssertionError


def test_nothing_is_looked_for_during_imports() -> None:
    words = "import common.telemetry.quick_start, gc; print(gc.isenabled())"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"


@pytest.mark.usefixtures("importing")
def test_a_service_looks_for_garbage() -> None:
    assert run_service("x", Refused, serve) == 1  # type: ignore[type-var]
    assert gc.isenabled()


@pytest.mark.usefixtures("importing")
def test_so_does_every_mode_of_the_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["runner", "gpu-memory", "--once"])
    assert main() == 0
    assert gc.isenabled()

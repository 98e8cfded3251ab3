"""Tiny models, built once per test session."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tools.model_zoo import build

Zoo = Callable[[str], Path]


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    """The file of a zoo model by its name."""
    directory = tmp_path_factory.mktemp("zoo")
    return lambda name: build(name, directory)

"""Real nodes with tiny real models."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.host.node import Node, running_node
from tools.model_zoo import build


@pytest.fixture(scope="session")
def models_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one good model."""
    directory = tmp_path_factory.mktemp("models")
    build("dense", directory)
    return directory


@pytest.fixture
async def node(tmp_path: Path, models_directory: Path) -> AsyncIterator[Node]:
    """Discovery and a host with the model "dense:latest"."""
    async with running_node(tmp_path, models_directory) as node:
        yield node

"""Real nodes with tiny real models."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.host.node import Node, running_node
from tests.integration.host.store_layout import LaidOut
from tests.integration.host.store_node import Store, running_store
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


@pytest.fixture(scope="session")
def dense(models_directory: Path) -> Path:
    """The file of that model."""
    return models_directory / "dense.gguf"


@pytest.fixture(scope="session")
def content(dense: Path) -> bytes:
    """Return the bytes of that file."""
    return dense.read_bytes()


@pytest.fixture
def laid(tmp_path: Path) -> LaidOut:
    """The files of `store`."""
    store = LaidOut(directory=tmp_path / "models")
    store.directory.mkdir()
    return store


@pytest.fixture
async def store(tmp_path: Path, laid: LaidOut) -> AsyncIterator[Store]:
    """The store of a host, empty."""
    async with running_store(tmp_path) as running:
        yield running

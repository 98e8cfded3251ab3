"""One cluster for all end-to-end tests that do not break it."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import ollama
import pytest

from tests.cluster import Cluster, start_cluster, trained_answers

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = start_cluster(tmp_path_factory.mktemp("cluster") / "home")
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster that the test may hurt."""
    running = start_cluster(tmp_path / "home")
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """For tests of the page; they are skipped where the machine has none."""
    from tests.e2e.browser_page import SCREENSHOTS, chromium  # the others do without a driver of browsers

    # Not while runners live: after a change of the checkout's folder Python lists it again before it finds
    # `tests.engines` in it, and confined runners may not list it.
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    with chromium() as running:
        yield running


@pytest.fixture(scope="session")
def answers() -> dict[str, str]:
    """The demo model's trained questions and their exact answers."""
    return trained_answers()


@pytest.fixture
def client(store: Cluster) -> Iterator[ollama.Client]:
    """The official client of the cluster that a module of tests calls its store."""
    with ollama.Client(host=store.url, timeout=120) as made:
        yield made


@pytest.fixture
def demo_file(store: Cluster) -> Path:
    """The file of its demo model."""
    (file,) = store.models.glob("demo*.gguf")
    return file


@pytest.fixture
def demo_bytes(demo_file: Path) -> bytes:
    """Return the bytes of the demo model's file."""
    return demo_file.read_bytes()

"""Two clusters for the tests of all commands: one asks for keys, so that refusals can be seen."""

from collections.abc import Iterator

import pytest

from tests.cluster import Cluster, start_cluster
from tests.integration.cli.place import Place, create_key


@pytest.fixture(scope="package")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("place")
    keys = directory / "keys.json"
    every = ("infer", "embed", "models:read", "models:write", "metrics", "admin:keys", "admin:cluster")
    key = create_key(keys, "ada", *every)
    reader = create_key(keys, "bob", "models:read")
    cluster = start_cluster(directory / "home", PUNA_API_KEYS_FILE=str(keys), PUNA_API_KEY=key)
    yield Place(cluster=cluster, key=key, reader=reader)
    cluster.stop()


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One that asks for no keys."""
    running = start_cluster(tmp_path_factory.mktemp("open") / "home")
    yield running
    running.stop()

"""Two nodes, each with a store of its own, as one: what is made where, and what is copied and forgotten everywhere."""

import asyncio
import hashlib
import shutil
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from runner.host.store_client import StoreClient
from tests.e2e.namespaces import Machines, running_stores
from tests.waiting import wait_until
from tools.model_zoo import build, build_adapter

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    with running_stores(tmp_path_factory.mktemp("stores"), names=("a", "b")) as running:
        yield running


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model and an adapter of it."""
    directory = tmp_path_factory.mktemp("files")
    model = build("dense", directory)
    return model, build_adapter(model, directory)


def nodes_of(stores: Machines) -> dict[str, list[str]]:
    """Every model and the nodes that have it."""
    models = httpx.get(stores.url + "/api/tags", timeout=60).json()["models"]
    return {model["name"]: model["nodes"] for model in models}


def blobs_of(stores: Machines, node: str) -> set[str]:
    directory = stores.directory / f"{node}-models" / "blobs"
    return {file.name.removeprefix("sha256-") for file in directory.glob("sha256-*")}


def put(stores: Machines, node: str, path: Path) -> str:
    """Send a file to the store of one node, past the gateway."""
    address = next(one["address"] for one in stores.nodes() if one["id"] == node)
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    asyncio.run(_send(address, digest, content))
    return digest


async def _send(address: str, digest: str, content: bytes) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield content

    client = StoreClient()
    try:
        await client.put_blob(address, digest, pieces(), size_bytes=len(content))
    finally:
        await client.close()


def test_a_model_is_made_where_most_of_it_lies_and_the_rest_is_brought_there(
    stores: Machines, files: tuple[Path, Path]
) -> None:
    model, adapter = files
    weights, delta = put(stores, "b", model), put(stores, "a", adapter)
    assert httpx.head(f"{stores.url}/api/blobs/sha256:{weights}", timeout=60).status_code == 200
    assert (
        httpx.post(f"{stores.url}/api/blobs/sha256:{weights}", content=model.read_bytes(), timeout=60).status_code
        == 200
    )
    body = {
        "model": "joined",
        "files": {model.name: f"sha256:{weights}"},
        "adapters": {adapter.name: f"sha256:{delta}"},
        "stream": False,
    }
    made = httpx.post(stores.url + "/api/create", json=body, timeout=60)
    assert (made.status_code, made.json()) == (200, {"status": "success"})
    assert nodes_of(stores)["joined:latest"] == ["b"]
    assert {weights, delta} <= blobs_of(stores, "b")
    assert weights not in blobs_of(stores, "a")
    again = httpx.post(stores.url + "/api/create", json={"model": "second", "from": "joined"}, timeout=60)
    assert again.text.splitlines()[-1] == '{"status":"success"}'
    assert nodes_of(stores)["second:latest"] == ["b"]
    for name in ("joined", "second"):
        assert httpx.request("DELETE", stores.url + "/api/delete", json={"model": name}, timeout=60).status_code == 200
    assert "joined:latest" not in nodes_of(stores)
    assert not {weights, delta} & blobs_of(stores, "b")


def test_a_name_is_copied_and_forgotten_on_every_node_that_has_it(stores: Machines, files: tuple[Path, Path]) -> None:
    for node in ("a", "b"):
        shutil.copy(files[0], stores.directory / f"{node}-models" / "both.gguf")
    wait_until(
        lambda: nodes_of(stores).get("both:latest") == ["a", "b"], deadline_s=20, what="both nodes show the file"
    )
    copied = httpx.post(stores.url + "/api/copy", json={"source": "both", "destination": "twin"}, timeout=60)
    assert (copied.status_code, copied.content) == (200, b"")
    wait_until(lambda: nodes_of(stores).get("twin:latest") == ["a", "b"], deadline_s=20, what="both nodes copied it")
    assert httpx.request("DELETE", stores.url + "/api/delete", json={"model": "twin"}, timeout=60).status_code == 200
    assert nodes_of(stores).keys() == {"both:latest"}
    assert httpx.request("DELETE", stores.url + "/api/delete", json={"model": "both"}, timeout=60).status_code == 200
    wait_until(lambda: not nodes_of(stores), deadline_s=20, what="nobody has it any more")
    assert not list(stores.directory.glob("*-models/both.gguf"))


def serving(stores: Machines, *, is_busy: bool = False) -> set[str]:
    """The nodes on which the model "spread" serves; `is_busy`: a request at this moment."""
    own = [(node, one) for node, one in stores.runners() if one["model"] == "spread:latest"]
    return {node for node, one in own if one["state"] in ("ready", "no_slots") and (one["slots_busy"] or not is_busy)}


def test_replicas_of_a_model_that_one_node_has_are_spread_over_both_and_both_serve(
    stores: Machines, files: tuple[Path, Path]
) -> None:
    weights = put(stores, "a", files[0])
    body = {"model": "spread", "files": {files[0].name: f"sha256:{weights}"}, "stream": False}
    assert httpx.post(stores.url + "/api/create", json=body, timeout=60).json() == {"status": "success"}
    assert nodes_of(stores)["spread:latest"] == ["a"]
    wanted = {"replicas_min": 2, "replicas_max": 2}
    httpx.put(f"{stores.url}/puna/v1/placements/spread", json=wanted, timeout=60).raise_for_status()
    wait_until(lambda: serving(stores) == {"a", "b"}, deadline_s=60, what="a replica serves on each node")
    assert weights in blobs_of(stores, "b")
    answers: list[httpx.Response] = []
    seen: set[str] = set()
    with ThreadPoolExecutor(2) as clients:  # a replica has one slot: two requests at once need both

        def both_are_busy() -> bool:
            asked = [clients.submit(stores.generate, "spread", num_predict=200) for _ in range(4)]
            while not all(one.done() for one in asked):
                seen.update(serving(stores, is_busy=True))
            answers.extend(one.result() for one in asked)
            return seen == {"a", "b"}

        wait_until(both_are_busy, deadline_s=60, what="both replicas are seen at work")
    assert {answer.status_code for answer in answers} == {200}
    assert all(answer.json()["done"] for answer in answers)

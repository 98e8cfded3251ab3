"""A store as Ollama lays it out, served where it lies."""

from pathlib import Path
from typing import Any

import httpx
import llama_cpp
import pytest

from tests.cluster import Cluster
from tests.integration.host.store_layout import LaidOut
from tests.integration.runner.split import split_gguf
from tests.waiting import wait_until
from tools.model_zoo import build, build_adapter

PROMPT = "The weather is cold"
TOKENS = 16


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("dense", tmp_path_factory.mktemp("dense"))


def reference(dense: Path, adapter: Path | None = None) -> str:
    lora = None if adapter is None else str(adapter)
    llm = llama_cpp.Llama(str(dense), lora_path=lora, n_ctx=512, n_threads=1, flash_attn=False, verbose=False)
    try:
        answer: Any = llm.create_completion(PROMPT, max_tokens=2 * TOKENS, temperature=0)
        return readable(answer["choices"][0]["text"])
    finally:
        llm.close()


def readable(text: str) -> str:
    """Without what stands for bytes that are no text: the class leaves them out."""
    return text.replace("\ufffd", "")


def tags(cluster: Cluster) -> dict[str, dict[str, Any]]:
    return {model["name"]: model for model in httpx.get(cluster.url + "/api/tags", timeout=60).json()["models"]}


def said(cluster: Cluster, model: str) -> str:
    options = {"temperature": 0, "num_predict": TOKENS, "num_ctx": 512}
    body = {"model": model, "prompt": PROMPT, "raw": True, "stream": False, "options": options}
    answer = cluster.post("/api/generate", body)
    assert answer.status_code == 200, answer.text
    return readable(answer.json()["response"])


def replicas_of(cluster: Cluster, digest: str) -> int:
    return sum(runner["digest"] == digest for runner in cluster.runners())


@pytest.mark.behaviour("B-153")
def test_an_ollama_store_answers_through_the_gateway_and_nothing_is_copied(
    cluster: Cluster, tmp_path: Path, dense: Path
) -> None:
    store = LaidOut(directory=cluster.models)
    content, adapter = dense.read_bytes(), build_adapter(dense, tmp_path)
    weights = store.layer("model", content)
    _, manifest = store.library("laid", weights, store.layer("template", b"{{ .Prompt }}"), tag="8b")
    store.manifest("registry.ollama.ai/me/same/latest", weights, store.layer("license", b"MIT"))
    parts = [store.layer("model", part.read_bytes()) for part in split_gguf(dense, tmp_path, parts=3)]
    store.library("parts", parts[1], parts[2], parts[0])
    store.manifest("hf.co/me/tuned/Q8_0", weights, store.layer("adapter", adapter.read_bytes()))
    names = {"laid:8b", "me/same:latest", "parts:latest", "hf.co/me/tuned:Q8_0"}
    wait_until(lambda: names <= tags(cluster).keys(), deadline_s=60, what="the names of the store are listed")
    before = store.blob_names()

    plain, tuned = reference(dense), reference(dense, adapter)
    assert plain[:TOKENS] != tuned[:TOKENS]
    for name in sorted(names):
        text = said(cluster, name)
        assert len(text) > TOKENS
        assert (tuned if "tuned" in name else plain).startswith(text), name

    assert store.unchanged()
    assert store.blob_names() == before
    listed = tags(cluster)["laid:8b"]
    assert listed["digest"] == manifest
    assert listed["size"] > len(content)
    assert replicas_of(cluster, str(weights["digest"]).removeprefix("sha256:")) == 1  # for both names

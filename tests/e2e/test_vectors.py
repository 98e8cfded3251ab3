"""Embeddings and rerank through a whole cluster, by official clients and over gRPC."""

import base64
import json
import math
from collections.abc import Iterator

import grpc
import httpx
import numpy as np
import ollama
import openai
import pytest

from protos import inference_pb2, inference_pb2_grpc
from tests.cluster import Cluster, metric_sum, start_cluster
from tests.waiting import wait_until
from tools.model_zoo import build

TEXTS = ["Puna is a high plateau.", "The quick brown fox", "jumps over the lazy dog."]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One with a model for vectors and one for scores."""
    folder = tmp_path_factory.mktemp("vectors")
    models = folder / "home" / "models"
    models.mkdir(parents=True)
    for name in ("embed_mean", "reranker"):
        build(name, models)
    running = start_cluster(folder / "home")
    try:
        wait_until(lambda: {"embed_mean", "reranker"} <= known(running), deadline_s=20, what="both models are known")
        yield running
    finally:
        running.stop()


def known(cluster: Cluster) -> set[str]:
    models = httpx.get(cluster.url + "/api/tags", timeout=60).json()["models"]
    return {model["name"].partition(":")[0] for model in models}


def embedded(cluster: Cluster, body: dict[str, object]) -> dict[str, list[list[float]]]:
    response = cluster.post("/api/embed", {"model": "embed_mean", **body})
    assert response.status_code == 200, response.text
    answer: dict[str, list[list[float]]] = response.json()
    return answer


@pytest.mark.behaviour("B-94")
def test_vectors_have_length_one_and_are_the_same_in_every_dialect(cluster: Cluster) -> None:
    native = embedded(cluster, {"input": TEXTS})["embeddings"]
    assert [np.linalg.norm(vector) for vector in native] == pytest.approx([1, 1, 1], abs=1e-6)

    with ollama.Client(host=cluster.url) as ollama_client:
        by_ollama = ollama_client.embed(model="embed_mean", input=TEXTS)
    assert np.allclose(by_ollama.embeddings, native, atol=1e-5)

    with openai.OpenAI(base_url=cluster.url + "/v1", api_key="none") as client:
        answer = client.embeddings.create(model="embed_mean", input=TEXTS)  # base64, the client's default
    assert np.allclose([item.embedding for item in answer.data], native, atol=1e-5)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0

    with grpc.insecure_channel(f"127.0.0.1:{cluster.grpc_port}") as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        typed = stub.Embed(inference_pb2.EmbedTextsRequest(model="embed_mean", texts=TEXTS), timeout=60)
    assert np.allclose([item.vector for item in typed.embeddings], native, atol=1e-5)


@pytest.mark.behaviour("B-94")
def test_dimensions_cut_and_scale_again_and_the_legacy_call_does_not_scale(cluster: Cluster) -> None:
    (whole,) = embedded(cluster, {"input": TEXTS[0]})["embeddings"]
    (cut,) = embedded(cluster, {"input": TEXTS[0], "dimensions": 8})["embeddings"]
    assert np.allclose(cut, np.array(whole[:8]) / np.linalg.norm(whole[:8]), atol=1e-5)
    legacy = cluster.post("/api/embeddings", {"model": "embed_mean", "prompt": TEXTS[0]}).json()["embedding"]
    length = np.linalg.norm(legacy)
    assert abs(length - 1) > 1e-3
    assert np.allclose(np.array(legacy) / length, whole, atol=1e-5)


def test_base64_is_little_endian_float32(cluster: Cluster) -> None:
    body = {"model": "embed_mean", "input": TEXTS[0]}
    numbers = cluster.post("/v1/embeddings", body).json()["data"][0]["embedding"]
    text = cluster.post("/v1/embeddings", body | {"encoding_format": "base64"}).json()["data"][0]["embedding"]
    assert np.allclose(np.frombuffer(base64.b64decode(text), "<f4"), numbers, atol=1e-6)


def test_token_ids_are_inputs_too(cluster: Cluster) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{cluster.grpc_port}") as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        request = inference_pb2.TokenizeTextRequest(model="embed_mean", text=TEXTS[1])
        ids = list(stub.Tokenize(request, timeout=60).ids)
    answer = cluster.post("/v1/embeddings", {"model": "embed_mean", "input": [ids, ids]}).json()
    (whole,) = embedded(cluster, {"input": TEXTS[1]})["embeddings"]
    assert len(answer["data"]) == 2
    assert np.allclose(answer["data"][0]["embedding"], whole, atol=1e-5)


def test_a_thousand_inputs_run_in_large_decodes(cluster: Cluster) -> None:
    texts = [f"text number {number}" for number in range(1000)]
    before = metric_sum(cluster.runner_metrics("embed_mean"), "puna_runner_decode_calls_total")
    vectors = embedded(cluster, {"input": texts})["embeddings"]
    calls = metric_sum(cluster.runner_metrics("embed_mean"), "puna_runner_decode_calls_total") - before
    assert len(vectors) == 1000
    assert calls < 1000 / 8  # far from one each; how many fit one call is the layout's business


def test_documents_are_ranked_and_scores_lie_between_zero_and_one(cluster: Cluster) -> None:
    body = {"model": "reranker", "query": "What is Puna?", "documents": [*TEXTS, {"text": "Puna again"}]}
    answer = cluster.post("/v1/rerank", body | {"return_documents": True, "top_n": 3}).json()
    scores = [result["relevance_score"] for result in answer["results"]]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)
    assert answer["results"][0]["document"]["text"] in [*TEXTS, "Puna again"]
    for path in ("/v2/rerank", "/rerank"):
        raw = cluster.post(path, body | {"normalize": False}).json()
        by_index = {result["index"]: result["relevance_score"] for result in raw["results"]}
        best = answer["results"][0]
        assert 1 / (1 + math.exp(-by_index[best["index"]])) == pytest.approx(best["relevance_score"], abs=1e-4)
    with grpc.insecure_channel(f"127.0.0.1:{cluster.grpc_port}") as channel:
        request = inference_pb2.RerankTextsRequest(model="reranker", query="What is Puna?", documents=TEXTS)
        typed = inference_pb2_grpc.InferenceStub(channel).Rerank(request, timeout=60)
    assert max(typed.scores) <= 1
    assert typed.prompt_tokens > 0


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("/api/embed", {"model": "demo", "input": "x"}, 501, "this model does not support embeddings"),
        ("/v1/embeddings", {"model": "demo", "input": "x"}, 400, "this model does not support embeddings"),
        ("/v1/rerank", {"model": "embed_mean", "query": "q", "documents": ["d"]}, 400, "reranking"),
        ("/api/embed", {"model": "embed_mean", "input": 5}, 400, "invalid input type"),
        ("/api/embed", {"input": "x"}, 400, "model is required"),
        ("/api/embed", {"model": "nobody", "input": "x"}, 404, "model 'nobody' not found"),
        ("/api/embed", {"model": "embed_mean", "input": "x", "dimensions": 65}, 400, "between 1 and 64"),
        ("/v1/embeddings", {"model": "embed_mean", "input": []}, 400, "input must be"),
        ("/v1/embeddings", {"model": "embed_mean", "input": ["a", ""]}, 400, "input[1] is empty"),
        ("/v1/embeddings", {"model": "embed_mean", "input": ["x"] * 2049}, 400, "at most 2048"),
        ("/v1/embeddings", {"model": "embed_mean", "input": "x", "encoding_format": "hex"}, 400, "encoding_format"),
        ("/v1/embeddings", {"model": "embed_mean", "input": "word " * 3000}, 400, "maximum context length is 1024"),
        ("/v1/rerank", {"model": "reranker", "query": "q", "documents": []}, 400, "documents must not be empty"),
        ("/v1/rerank", {"model": "reranker", "query": "q", "documents": [1]}, 400, "documents[0]"),
    ],
)
def test_bad_input_is_refused_in_the_callers_dialect(
    cluster: Cluster, path: str, body: dict[str, object], status: int, text: str
) -> None:
    response = cluster.post(path, body)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert text in (error if path.startswith("/api") else error["message"])


def test_an_empty_input_loads_and_answers_with_nothing(cluster: Cluster) -> None:
    assert embedded(cluster, {"input": ""})["embeddings"] == []
    assert json.loads(cluster.post("/api/embeddings", {"model": "embed_mean"}).text) == {"embedding": []}


def test_one_failing_input_fails_the_request(cluster: Cluster) -> None:
    body = {"model": "embed_mean", "input": ["short", "word " * 3000], "truncate": False}
    response = cluster.post("/api/embed", body)
    assert response.status_code == 400
    assert "exceeds the context length" in response.json()["error"]


def test_a_long_input_is_cut_by_default(cluster: Cluster) -> None:
    answer = embedded(cluster, {"input": "word " * 3000})
    assert len(answer["embeddings"]) == 1

"""Embed and Rerank over gRPC, with real runner processes."""

import asyncio
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format

from common.errors import (
    InternalError,
    InvalidRequest,
    PlacementMismatch,
    PromptTooLong,
    PunaError,
    QueueFull,
    ShuttingDown,
    UnsupportedCapability,
)
from protos import cluster_pb2, runner_pb2
from tests.integration.runner.conftest import Zoo
from tests.integration.runner.pooled_harness import EMBEDDERS, Oracle, poison
from tests.integration.runner.processes import ROOT, RunnerProcess, collect, greedy, started
from tools.model_zoo import Recipe, build
from tools.model_zoo.blueprint import Blueprint
from tools.model_zoo.catalogue import ZOO
from tools.model_zoo.tokens.tokenizer import Tokenizer

TOO_LONG = "the input length exceeds the context length: {} tokens > 512 maximum"
LAYOUT = '{"slots": 4, "contextTokens": 512, "threads": 1}'


def embed(*texts: str, **fields: Any) -> runner_pb2.EmbedRequest:
    inputs = [runner_pb2.EmbedInput(segments=[runner_pb2.Segment(literal=text)]) for text in texts]
    return runner_pb2.EmbedRequest(inputs=inputs, **{"truncate": True, **fields})


def embed_ids(*inputs: list[int], **fields: Any) -> runner_pb2.EmbedRequest:
    given = [
        runner_pb2.EmbedInput(segments=[runner_pb2.Segment(token_ids=runner_pb2.TokenIds(ids=ids))]) for ids in inputs
    ]
    return runner_pb2.EmbedRequest(inputs=given, **{"truncate": True, **fields})


def counts(response: runner_pb2.EmbedResponse) -> list[int]:
    return [embedding.prompt_tokens for embedding in response.embeddings]


async def calls(runner: RunnerProcess) -> float:
    return await runner.metric("puna_runner_decode_calls_total")


@pytest.mark.behaviour("B-92", "B-93")
@pytest.mark.parametrize("model", EMBEDDERS)
async def test_64_short_inputs_are_answered_by_one_call(zoo: Zoo, tmp_path: Path, model: str) -> None:
    async with started(zoo(model), tmp_path, layout=LAYOUT) as runner:
        await runner.ready()
        response = await runner.client.embed(embed(*[f"Text {index}" for index in range(64)]))
        assert await calls(runner) == 1
        vectors = np.array([embedding.vector for embedding in response.embeddings])
        assert vectors.shape == (64, ZOO[model].embedding)
        # As pooled: the gateway normalises.
        assert np.abs(np.linalg.norm(vectors, axis=1) - 1).min() > 0.1
        assert response.prompt_duration_ns > 0
        assert await runner.metric("puna_runner_prompt_tokens_total") == sum(counts(response))


@pytest.mark.behaviour("B-90")
async def test_an_input_longer_than_the_batch_is_answered_and_the_process_lives(zoo: Zoo, tmp_path: Path) -> None:
    layout = '{"contextTokens": 1024, "batchTokens": 512, "threads": 1}'
    async with started(zoo("embed_mean"), tmp_path, layout=layout) as runner:
        await runner.ready()
        response = await runner.client.embed(embed_ids([5] * 600, truncate=False))
        assert counts(response) == [602]
        assert (await runner.client.info()).layout.batch_tokens == 1024
        assert counts(await runner.client.embed(embed("still there"))) != []


@pytest.mark.behaviour("B-91")
async def test_inputs_are_cut_by_the_runner_and_counted_as_cut(zoo: Zoo, tmp_path: Path) -> None:
    async with started(zoo("embed_mean"), tmp_path, layout=LAYOUT) as runner:
        await runner.ready()
        head = list(range(5, 515))
        response = await runner.client.embed(embed_ids([5] * 1024, [5] * 10, [], [*head, *[9] * 514], head))
        # Begin and separator are inside of every count.
        assert counts(response) == [512, 12, 2, 512, 512]
        # The cut keeps the first tokens, and the frame around them.
        vectors = [list(embedding.vector) for embedding in response.embeddings]
        assert np.allclose(vectors[3], vectors[4], rtol=1e-3, atol=1e-3)
        assert counts(await runner.client.embed(embed_ids([5] * 1024, context_tokens=100))) == [100]
        assert counts(await runner.client.embed(embed_ids([5] * 1024, context_tokens=10_000))) == [512]


@pytest.mark.behaviour("B-91")
async def test_the_trained_length_bounds_an_input_where_the_context_is_longer(tmp_path: Path) -> None:
    recipe: Recipe = ZOO["embed_cls"]
    layout = f'{{"contextTokens": {2 * recipe.context_tokens}, "threads": 1}}'
    async with started(build(recipe, tmp_path), tmp_path, layout=layout) as runner:
        await runner.ready()
        response = await runner.client.embed(embed_ids([5] * 5000, [5] * 5000))
        assert counts(response) == [recipe.context_tokens] * 2
        # Two of them are one call: only positions are bounded by the training, not the batch.
        assert await calls(runner) == 1


@pytest.mark.behaviour("B-91", "B-56")
async def test_bad_requests_are_refused_in_words_and_hurt_nobody(zoo: Zoo, tmp_path: Path) -> None:
    async with started(zoo("embed_mean"), tmp_path, layout=LAYOUT) as runner:
        await runner.ready()
        neighbour = asyncio.create_task(runner.client.embed(embed_ids(*[[5] * 500] * 20)))
        wrong: list[tuple[runner_pb2.EmbedRequest, type[PunaError], str]] = [
            (embed_ids([5] * 511, truncate=False), PromptTooLong, TOO_LONG.format(513)),
            (embed_ids([5], [5] * 511, truncate=False), PromptTooLong, TOO_LONG.format(513)),
            (
                embed("x", context_tokens=2),
                InvalidRequest,
                "input after truncation exceeds maximum context length",
            ),
            (embed("x", context_tokens=0), InvalidRequest, "context_tokens must be at least 1"),
            (embed_ids([10**6]), InvalidRequest, "token 1000000 is outside of the vocabulary of 925"),
            (
                embed(*["x"] * 2049),
                InvalidRequest,
                "at most 2048 inputs are allowed in a request to this model",
            ),
            (
                runner_pb2.EmbedRequest(inputs=[runner_pb2.EmbedInput(segments=[runner_pb2.Segment()])]),
                InvalidRequest,
                "a segment needs text, literal, token_ids or media",
            ),
        ]
        for request, kind, text in wrong:
            with pytest.raises(kind) as refused:
                await runner.client.embed(request)
            assert refused.value.message == text
        assert counts(await neighbour) == [502] * 20
        assert (await runner.client.embed(embed())).embeddings == []
        assert (await runner.status_where(slots_busy=0)).queued == 0


@pytest.mark.behaviour("B-40")
async def test_the_same_input_twice_gives_equal_vectors_and_finds_nothing_cached(zoo: Zoo, tmp_path: Path) -> None:
    async with started(zoo("embed_last"), tmp_path, layout=LAYOUT) as runner:
        await runner.ready()
        first, second = [await runner.client.embed(embed("The same text, twice.")) for _ in range(2)]
        assert list(first.embeddings[0].vector) == list(second.embeddings[0].vector)
        assert await runner.metric("puna_runner_cached_tokens_total") == 0
        evaluated = first.embeddings[0].prompt_tokens + second.embeddings[0].prompt_tokens
        assert await runner.metric("puna_runner_prompt_tokens_total") == evaluated
        done = [event for event in runner.events() if event["event"] == "request.done"]
        assert [(event["reason"], event["inputs"], event["cached_tokens"]) for event in done] == [("done", 1, 0)] * 2


@pytest.mark.behaviour("B-93")
async def test_documents_are_ranked_as_llama_cpp_pythons_own_class_does(zoo: Zoo, tmp_path: Path) -> None:
    query = "How do I bake bread?"
    documents = ["Bread is baked in an oven.", "The train leaves at seven.", "", "Flour, water, salt.", "[CLS] [SEP]"]
    async with started(
        zoo("reranker"), tmp_path, layout=LAYOUT.replace("}", ', "flashAttention": "FLASH_ATTENTION_OFF"}')
    ) as runner:
        await runner.ready()
        response = await runner.client.rerank(runner_pb2.RerankRequest(query=query, documents=documents))
        assert await calls(runner) == 1
        pairs = []
        for document in documents:
            pieces = [(await runner.client.tokenize(literal(text))).ids for text in (query, document)]
            pairs.append([2, *pieces[0], 3, *pieces[1]])  # [CLS] query [SEP] document, by the vocabulary's flags
    assert [score.prompt_tokens for score in response.scores] == [len(pair) for pair in pairs]
    oracle = Oracle(zoo("reranker"), 512)
    try:
        expected = np.array([oracle.vector(pair, 1)[0] for pair in pairs])
    finally:
        oracle.close()
    scores = np.array([score.score for score in response.scores])
    assert np.abs(scores - expected).max() <= 0.005 * np.abs(expected).max()
    assert list(np.argsort(-scores)) == list(np.argsort(-expected))
    assert np.ptp(expected) > 0.1


def literal(text: str) -> runner_pb2.TokenizeRequest:
    return runner_pb2.TokenizeRequest(segments=[runner_pb2.Segment(literal=text)])


@pytest.mark.behaviour("B-91")
async def test_pairs_are_cut_at_the_document(zoo: Zoo, tmp_path: Path) -> None:
    async with started(zoo("reranker"), tmp_path, layout=LAYOUT) as runner:
        await runner.ready()

        async def tokens(**fields: Any) -> int:
            request = runner_pb2.RerankRequest(query="bread", documents=["bread " * 600], **fields)
            return (await runner.client.rerank(request)).scores[0].prompt_tokens

        with pytest.raises(PromptTooLong) as refused:
            await tokens()
        counted = len((await runner.client.tokenize(literal("bread " * 600))).ids)
        assert await tokens(truncate=True) == 512
        whole = 2 + len((await runner.client.tokenize(literal("bread"))).ids)
        assert refused.value.message == TOO_LONG.format(whole + counted)
        assert await tokens(document_tokens_max=20) == whole + 20
        assert await tokens(truncate=True, context_tokens=50) == 50


@pytest.mark.behaviour("B-93")
@pytest.mark.parametrize(
    ("model", "embeds", "ranks", "generates"),
    [("dense", False, False, True), ("embed_last", True, False, False), ("reranker", False, True, False)],
)
async def test_a_model_refuses_what_it_cannot_do(
    zoo: Zoo, tmp_path: Path, model: str, embeds: bool, ranks: bool, generates: bool
) -> None:
    async with started(zoo(model), tmp_path) as runner:
        await runner.ready()
        attempts = [
            (embeds, "embeddings", runner.client.embed(embed("x"))),
            (ranks, "reranking", runner.client.rerank(runner_pb2.RerankRequest(query="x", documents=["y"]))),
            (generates, "generation", collect(runner.client, greedy("x"))),
        ]
        for possible, what, attempt in attempts:
            if possible:
                await attempt
                continue
            with pytest.raises(UnsupportedCapability) as refused:
                await attempt
            assert refused.value.message == f"this model does not support {what}"


async def test_many_requests_at_once_share_calls_and_get_their_own_vectors(zoo: Zoo, tmp_path: Path) -> None:
    async with started(zoo("embed_cls"), tmp_path, layout=LAYOUT) as runner:
        await runner.ready()
        texts = [f"Request {index} of many" for index in range(40)]
        alone = [(await runner.client.embed(embed(text))).embeddings[0].vector for text in texts]
        before = await calls(runner)
        heavy = asyncio.create_task(runner.client.embed(embed_ids(*[[5] * 510] * 20)))
        together = await asyncio.gather(*[runner.client.embed(embed(text)) for text in texts])
        await heavy
        assert await calls(runner) - before < 60
        for expected, response in zip(alone, together, strict=True):
            assert np.abs(np.array(response.embeddings[0].vector) - expected).max() < 0.02 * np.abs(expected).max()


@pytest.mark.behaviour("B-12", "B-56")
async def test_leaving_a_call_drops_what_is_not_computed(zoo: Zoo, tmp_path: Path) -> None:
    async with started(zoo("embed_last"), tmp_path, layout=LAYOUT) as runner:
        await runner.ready()
        call = asyncio.create_task(runner.client.embed(embed_ids(*[[5] * 512] * 2048)))
        status = await runner.status_where(slots_busy=1)
        assert status.slots_total == 64
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await runner.status_where(slots_busy=0, queued=0)
        assert await calls(runner) < 2048
        assert await runner.metric("puna_runner_requests_total") == 1
        done = [event for event in runner.events() if event["event"] == "request.done"]
        assert [event["reason"] for event in done] == ["cancelled"]


async def test_requests_beyond_the_waiting_places_are_refused_and_all_others_answered(zoo: Zoo, tmp_path: Path) -> None:
    async with started(zoo("embed_mean"), tmp_path, layout='{"contextTokens": 1024, "threads": 1}') as runner:
        await runner.ready()
        requests = [runner.client.embed(embed_ids([5] * 1022)) for _ in range(160)]
        answers = await asyncio.gather(*requests, return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, QueueFull)]
        served = [answer for answer in answers if isinstance(answer, runner_pb2.EmbedResponse)]
        assert len(refused) + len(served) == 160
        assert len(served) >= 64 + 16
        assert refused
        assert all(error.retry_after_s for error in refused)
        status = await runner.status_where(slots_busy=0)
        assert (status.queued, status.requests_total) == (0, len(served))


async def test_placement_keep_alive_and_draining_are_as_for_generation(zoo: Zoo, tmp_path: Path) -> None:
    options = ("--placement", "p-1", "--generation", "2")
    async with started(zoo("embed_mean"), tmp_path, *options, layout=LAYOUT) as runner:
        await runner.ready()
        other = cluster_pb2.PlacementRef(placement_id="p-1", generation=1)
        with pytest.raises(PlacementMismatch):
            await runner.client.embed(embed("x", placement=other))
        await runner.client.embed(embed("x", keep_alive_ms=60_000))
        assert (await runner.status_where(slots_busy=0)).keep_alive_ms == 60_000
        info = await runner.client.info()
        assert (info.layout.engine, info.layout.slots) == ("pooled", 64)
        running = asyncio.create_task(runner.client.embed(embed_ids(*[[5] * 510] * 200)))
        await runner.status_where(slots_busy=1)
        runner.process.send_signal(signal.SIGTERM)
        await runner.status_where(state=cluster_pb2.RUNNER_STATE_DRAINING)
        with pytest.raises(ShuttingDown):
            await runner.client.embed(embed("too late"))
        assert counts(await running) == [512] * 200
        assert await runner.exit_status() == 0


async def test_an_invalid_number_is_an_error_never_an_answer(zoo: Zoo, tmp_path: Path) -> None:
    path = poison(zoo("embed_mean"), tmp_path / "poisoned.gguf", 20)
    async with started(path, tmp_path, layout=LAYOUT) as runner:
        await runner.ready()
        with pytest.raises(InternalError):
            await runner.client.embed(embed_ids([7, 8], [7, 20]))
        assert len((await runner.client.embed(embed_ids([7, 8]))).embeddings) == 1
        assert await runner.metric("puna_runner_requests_total") == 2


@pytest.mark.behaviour("B-93")
async def test_a_models_own_ranking_prompt_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    template = "question {query} answer {document} end"
    monkeypatch.setattr(Blueprint, "add_tokenizer", with_rerank_template(template))
    path = build(replace(ZOO["reranker"], name="reranker_template"), tmp_path)
    async with started(path, tmp_path, layout=LAYOUT) as runner:
        await runner.ready()
        request = runner_pb2.RerankRequest(query="bread", documents=["flour", "trains"])
        scores = (await runner.client.rerank(request)).scores
        for score, document in zip(scores, request.documents, strict=True):
            ids = (await runner.client.tokenize(literal(f"question bread answer {document} end"))).ids
            assert score.prompt_tokens == len(ids)


def with_rerank_template(template: str) -> Callable[[Blueprint, Tokenizer], None]:
    """The zoo's way to add a tokenizer, and one more key behind it."""
    add_tokenizer = Blueprint.add_tokenizer

    def add(blueprint: Blueprint, tokenizer: Tokenizer) -> None:
        add_tokenizer(blueprint, tokenizer)
        blueprint.metadata.append(("tokenizer.chat_template.rerank", template))

    return add


@pytest.mark.parametrize("model", ["embed_mean", "embed_last", "reranker"])
async def test_measured_bytes_are_the_bytes_that_a_load_takes(zoo: Zoo, tmp_path: Path, model: str) -> None:
    layout = '{"contextTokens": 1024, "threads": 1}'
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "runner", "measure", "--model", str(zoo(model)), "--layout", layout),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    async with asyncio.timeout(120):
        stdout, _ = await process.communicate()
    measured = json_format.Parse(stdout, cluster_pb2.MemoryReport())
    async with started(zoo(model), tmp_path, layout=layout) as runner:
        loaded = (await runner.ready()).memory
    assert (measured.host.cache_bytes, measured.host.graph_bytes) == (loaded.host.cache_bytes, loaded.host.graph_bytes)
    # A file does not align its tensors as a buffer does.
    assert abs(measured.host.weights_bytes - loaded.host.weights_bytes) < 4096
    assert loaded.host.cache_bytes > 1024 * 925 * 4
